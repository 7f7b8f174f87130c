"""What Prometheus scrapes: base units, millisecond-scale buckets, label values from closed sets.

Successes and server errors of every route, and refusals by their reason, are there from the start with 0: a rate over a
first error is a number and not a gap. Under OpenMetrics a request's duration carries an exemplar: its trace id where it
has one, else its request id.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from service.context import RequestContext
from service.machine import anonymous_memory, core_limit, memory_limit
from service.observability.stages import BatchRecord, Stage

# The name of every metric: the registry, the dashboard and the alerts take it from here. A counter's name ends in
# `_total`; a histogram's series are `_bucket`, `_count` and `_sum` of its name. The names `process_...` and
# `python_...` are prometheus-client's own.
REQUEST_DURATION = "polyhead_request_duration_seconds"
STAGE_DURATION = "polyhead_stage_duration_seconds"
REQUESTS_REJECTED = "polyhead_requests_rejected_total"
CALLER_DEADLINES = "polyhead_caller_deadlines_total"
ANSWER_DURATION = "polyhead_answer_duration_seconds"
REQUESTS_IN_FLIGHT = "polyhead_requests_in_flight"
CLIENT_DISCONNECTS = "polyhead_client_disconnects_total"

TEXTS = "polyhead_texts_total"
TOKENS = "polyhead_tokens_total"
TRUNCATED_TEXTS = "polyhead_truncated_texts_total"
INPUT_TOKENS = "polyhead_input_tokens"
ATTENTION_REQUESTS = "polyhead_attention_requests_total"
ATTENTION_BYTES = "polyhead_attention_bytes_total"

BATCH_TEXTS = "polyhead_batch_texts"
BATCH_TOKENS = "polyhead_batch_tokens"
BATCH_PADDING_RATIO = "polyhead_batch_padding_ratio"
PADDING_TOKENS = "polyhead_padding_tokens_total"

QUEUE_TEXTS = "polyhead_queue_texts"
QUEUE_TOKENS = "polyhead_queue_tokens"
QUEUE_LIMIT_TOKENS = "polyhead_queue_limit_tokens"
QUEUE_OLDEST_AGE = "polyhead_queue_oldest_age_seconds"
TOKENIZER_QUEUE_CHARACTERS = "polyhead_tokenizer_queue_characters"
EXPLAIN_QUEUE_VECTORS = "polyhead_explain_queue_token_vectors"

READY = "polyhead_ready"
MODEL_INFO = "polyhead_model_info"
MODEL_LOAD = "polyhead_model_load_seconds"
MODEL_READY = "polyhead_model_ready"
WORKER_BUSY = "polyhead_worker_busy_seconds_total"
WORKERS = "polyhead_workers"
BUSY_LIMIT = "polyhead_busy_workers_limit"
INTRA_OP_THREADS = "polyhead_intra_op_threads"
CPU_LIMIT = "polyhead_cpu_limit_cores"
MEMORY_ANONYMOUS = "polyhead_memory_anonymous_bytes"
MEMORY_LIMIT = "polyhead_memory_limit_bytes"
LOOP_LAG = "polyhead_event_loop_lag_seconds"

PROCESSES = "polyhead_processes"  # these two exist only with several processes
PROCESS_RESTARTS = "polyhead_process_restarts_total"

CLIENT_CLOSED = 499  # nginx's status for a client that left: in log and metrics only, as no client is there to read it

REQUEST_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
STAGE_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
LAG_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
TEXTS_BUCKETS = tuple(2**power for power in range(10))
TOKENS_BUCKETS = tuple(2**power for power in range(4, 17))
INPUT_BUCKETS = tuple(2**power for power in range(2, 14))
PADDING_BUCKETS = (0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1)

SIZES = {"small": 512, "medium": 8192, "large": math.inf}
"""Classes of requests by their most tokens: how long a request may take depends on them."""

_EXEMPLAR_CHARACTERS = 128  # of names and values together (OpenMetrics 1.0, Exemplars); a longer id is left out


class Metrics:
    """All metrics of one app.

    Args:
        routes: every (route template, method, status) that has a series from the start.
        reasons: codes of the errors that are refusals.
    """

    def __init__(self, routes: Iterable[tuple[str, str, int]], reasons: Iterable[str]) -> None:
        self.registry = registry = make_registry("this process")
        prometheus_client.PlatformCollector(registry=registry)
        prometheus_client.GCCollector(registry=registry)
        request_duration = Histogram(
            REQUEST_DURATION,
            "From the request's headers to the end of its answer. Status 499: the client left.",
            ("route", "method", "status"),
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self._duration_of = functools.cache(request_duration.labels)  # 3 microseconds less; the values are few
        for route, method, status in routes:
            self._duration_of(route, method, status)
        rejected = Counter(REQUESTS_REJECTED, "Requests refused, by error code.", ("reason",), registry=registry)
        self._rejected = {reason: rejected.labels(reason) for reason in reasons}
        self.loop_lag = Histogram(
            LOOP_LAG,
            "How much later than asked for the event loop woke a timer, ten times a second.",
            buckets=LAG_BUCKETS,
            registry=registry,
        )
        self._caller_deadlines = Counter(
            CALLER_DEADLINES, "Requests answered 504 whose X-Request-Timeout was shorter than ours.", registry=registry
        )
        self._disconnects = Counter(CLIENT_DISCONNECTS, "Clients that left before their answer.", registry=registry)
        gauge = functools.partial(Gauge, registry=registry)
        self.in_flight = gauge(REQUESTS_IN_FLIGHT, "Requests being answered.")
        self.ready = gauge(READY, "1 while the process takes traffic, else 0.")
        self.busy_limit = gauge(BUSY_LIMIT, "Workers of all models that can be busy at once: models share the cores.")
        self._families = _families(registry)
        self._models: dict[str, ModelMetrics] = {}

    def of_model(self, name: str) -> "ModelMetrics":
        """What is counted of one model; made, with all its series, when it is first asked for."""
        if (found := self._models.get(name)) is None:
            found = self._models[name] = ModelMetrics(name, self._families)
        return found

    def forget_model(self, name: str) -> None:
        """Takes away the series of a model that is served no more."""
        if self._models.pop(name, None) is not None:
            for family in self._families.values():
                family.remove_by_labels({"model": name})

    def count_refusal(self, code: str) -> None:
        """Counts a refused request, also one that never became a request."""
        if (refused := self._rejected.get(code)) is not None:
            refused.inc()

    def count_early_refusal(self, route: str, method: str, code: str) -> None:
        """Counts a request that was refused from its head alone, which took no time."""
        self._duration_of(route, method, 429).observe(0)
        self.count_refusal(code)

    def observe_context(self, context: RequestContext, seconds: float, *, has_answer: bool) -> None:
        """Counts one finished request; where its route runs the model, answers have objectives of their own."""
        name, value = ("trace_id", context.trace_id) if context.trace_id else ("request_id", context.request_id)
        exemplar = {name: value} if len(name) + len(value) <= _EXEMPLAR_CHARACTERS else None
        self._duration_of(context.route, context.method, context.status).observe(seconds, exemplar)
        if context.status == 504 and context.has_own_deadline:
            self._caller_deadlines.inc()
        if context.status == 200 and has_answer and context.tokens and (of := self._models.get(context.model)):
            of.observe_answer(context.tokens, seconds)
        if context.is_abandoned:
            self._disconnects.inc()
        elif context.error_code is not None:
            self.count_refusal(context.error_code)


def make_registry(whose: str) -> CollectorRegistry:
    """A registry with what this process uses, and the limits of what it stands for."""
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # published without annotations
    registry = CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    gauge = functools.partial(Gauge, registry=registry)
    gauge(CPU_LIMIT, f"Cores that affinity and cgroup leave {whose}.").set(core_limit())
    gauge(MEMORY_LIMIT, f"Memory that cgroup and machine leave {whose}.").set(memory_limit() or math.nan)
    unmapped = "Memory that the kernel cannot take back by reading a file again: without mapped weights."
    gauge(MEMORY_ANONYMOUS, unmapped).set_function(anonymous_memory)
    return registry


Family = Counter | Gauge | Histogram


def _families(registry: CollectorRegistry) -> dict[str, Family]:
    """The metrics that each model has series of, by name."""
    found: dict[str, Family] = {}

    def add(kind: Callable[..., Family], name: str, text: str, *labels: str, **options: Any) -> None:
        found[name] = kind(name, text, (*labels, "model"), registry=registry, **options)

    stages = "Time by stage, once a request; queue and inference are the longest among its texts."
    answers = "Requests answered 200 whose texts the model ran, by their tokens."
    add(Histogram, STAGE_DURATION, stages, "stage", buckets=STAGE_BUCKETS)
    add(Histogram, ANSWER_DURATION, answers, "size", buckets=REQUEST_BUCKETS)
    add(Histogram, INPUT_TOKENS, "Tokens of each text encoded, after truncation.", buckets=INPUT_BUCKETS)
    add(Histogram, BATCH_TEXTS, "Texts in one run of the model.", buckets=TEXTS_BUCKETS)
    add(Histogram, BATCH_TOKENS, "Tokens in one run of the model, without padding.", buckets=TOKENS_BUCKETS)
    add(Histogram, BATCH_PADDING_RATIO, "Share of a run's tokens that were padding.", buckets=PADDING_BUCKETS)
    add(Counter, TEXTS, "Texts encoded.")
    add(Counter, TOKENS, "Tokens encoded, special tokens included.")
    add(Counter, TRUNCATED_TEXTS, "Texts encoded whose end or start was cut off.")
    add(Counter, ATTENTION_REQUESTS, "Requests answered with attention weights.")
    add(Counter, ATTENTION_BYTES, "Attention weights answered, in bytes of float32.")
    add(Counter, PADDING_TOKENS, "Positions of batches that were padding.")
    add(Counter, WORKER_BUSY, "Time that workers spent running the model, all of them together.")
    add(Gauge, QUEUE_TEXTS, "Texts waiting for a worker.")
    add(Gauge, QUEUE_TOKENS, "Tokens waiting for a worker.")
    add(Gauge, QUEUE_LIMIT_TOKENS, "Tokens that may wait; beyond, requests are refused.")
    add(Gauge, QUEUE_OLDEST_AGE, "How long the text that waits longest has waited.")
    add(Gauge, TOKENIZER_QUEUE_CHARACTERS, "Characters of long texts waiting for a thread.")
    add(Gauge, EXPLAIN_QUEUE_VECTORS, "Token vectors of texts explained through the network.")
    add(Gauge, MODEL_READY, "1 while the model is loaded and its workers answer, else 0.")
    add(Gauge, MODEL_LOAD, "What verifying, loading and warming up the model took.")
    add(Gauge, WORKERS, "Threads that run the model.")
    add(Gauge, INTRA_OP_THREADS, "Threads of ONNX Runtime inside one run.")
    add(Gauge, MODEL_INFO, "The models that answer.", *MODEL_LABELS)
    return found


class ModelMetrics:
    """What is counted of one model, whose name is the value of the label `model`; `stages` are its seconds by stage."""

    def __init__(self, name: str, families: Mapping[str, Any]) -> None:
        self._name = name
        self._families = families
        stage_duration, answer_duration = families[STAGE_DURATION], families[ANSWER_DURATION]
        self.stages: dict[Stage, Any] = {stage: stage_duration.labels(stage, name) for stage in get_args(Stage)}
        self._answers: dict[str, Any] = {size: answer_duration.labels(size, name) for size in SIZES}
        own = families.keys() - {STAGE_DURATION, ANSWER_DURATION, MODEL_INFO}  # which have more labels
        self._own: dict[str, Any] = {key: families[key].labels(name) for key in own}

    def set_model(self, labels: Mapping[str, str]) -> None:
        """Sets which model it is."""
        self._families[MODEL_INFO].remove_by_labels({"model": self._name})  # of what had this name before
        self._families[MODEL_INFO].labels(model=self._name, **labels).set(1)

    def watch(self, gauges: Mapping[str, Callable[[], float]]) -> None:
        """Reads gauges from here at each scrape, by name."""
        for name, read in gauges.items():
            self._own[name].set_function(read)

    def observe_batch(self, batch: BatchRecord) -> None:
        """Counts one run of the model; called on the workers' threads."""
        self._own[WORKER_BUSY].inc(batch.inference_seconds)
        if not batch.texts:
            return
        self._own[BATCH_TEXTS].observe(batch.texts)
        self._own[BATCH_TOKENS].observe(batch.tokens)
        self._own[BATCH_PADDING_RATIO].observe(1 - batch.tokens / batch.padded_tokens)
        self._own[PADDING_TOKENS].inc(batch.padded_tokens - batch.tokens)

    def observe_texts(self, lengths: Sequence[int], *, truncated: int, attention_bytes: int | None = None) -> None:
        """Counts the texts of one answered request: their tokens, how many were cut, and bytes of attention, if any."""
        self._own[TEXTS].inc(len(lengths))
        self._own[TOKENS].inc(sum(lengths))
        self._own[TRUNCATED_TEXTS].inc(truncated)
        input_tokens = self._own[INPUT_TOKENS]
        for length in lengths:
            input_tokens.observe(length)
        if attention_bytes is not None:
            self._own[ATTENTION_REQUESTS].inc()
            self._own[ATTENTION_BYTES].inc(attention_bytes)

    def observe_answer(self, tokens: int, seconds: float) -> None:
        """Counts one good answer, by the tokens of its request."""
        size = next(size for size, most in SIZES.items() if tokens <= most)
        self._answers[size].observe(seconds)


MODEL_LABELS = ("source", "revision", "precision", "weights_sha256", "identity", "provider", "engine")
"""What `polyhead_model_info` says of a model besides its name."""
