"""What Prometheus scrapes: base units, millisecond-scale buckets, label values from closed sets.

Each app has its own registry. Successes and server errors of every route are there from the start with 0, so that a
rate over a first error is a number and not a gap; refusals are, by their reason. Under OpenMetrics a
request's duration carries an exemplar: its trace id where it has one, else its request id. Both are in its log line.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from service.context import RequestContext
from service.observability import metric_names as names
from service.observability.batch_record import BatchRecord
from service.observability.snapshots import Snapshot, SnapshotCollector

Stage = Literal["tokenize", "queue", "inference", "postprocess", "serialize"]

CLIENT_CLOSED = 499  # nginx's status for a client that left: seen in log and metrics only, nobody is there to read it

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

    Attributes:
        registry: everything, as the library sees it.
    """

    def __init__(self, routes: Iterable[tuple[str, str, int]], reasons: Iterable[str]) -> None:
        """Makes every metric.

        Args:
            routes: every (route template, method, status) that has a series from the start.
            reasons: codes of the errors that are refusals.
        """
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # published without annotations
        self.registry = registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        prometheus_client.PlatformCollector(registry=registry)
        prometheus_client.GCCollector(registry=registry)
        request_duration = Histogram(
            names.REQUEST_DURATION,
            "From the request's headers to the end of its answer. Status 499: the client left.",
            ("route", "method", "status"),
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self._duration_of = functools.cache(request_duration.labels)  # 3 microseconds less; the values are few
        for route, method, status in routes:
            self._duration_of(route, method, status)
        stage_duration = Histogram(
            names.STAGE_DURATION,
            "Time by stage, once a request; queue and inference are the longest among its texts.",
            ("stage",),
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self.stages: dict[Stage, Histogram] = {stage: stage_duration.labels(stage) for stage in get_args(Stage)}
        answer_duration = Histogram(
            names.ANSWER_DURATION,
            "POST requests answered 200 that had texts, by their tokens.",
            ("size",),
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self._answers = {size: answer_duration.labels(size) for size in SIZES}
        rejected = Counter(names.REQUESTS_REJECTED, "Requests refused, by error code.", ("reason",), registry=registry)
        self._rejected = {reason: rejected.labels(reason) for reason in reasons}
        self._add_histograms(registry)
        self._add_counters(registry)
        self._add_gauges(registry)

    def _add_histograms(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=registry)

        self._input_tokens = histogram(
            names.INPUT_TOKENS, "Tokens of each text encoded, after truncation.", INPUT_BUCKETS
        )
        self._batch_texts = histogram(names.BATCH_TEXTS, "Texts in one run of the model.", TEXTS_BUCKETS)
        self._batch_tokens = histogram(
            names.BATCH_TOKENS, "Tokens in one run of the model, without padding.", TOKENS_BUCKETS
        )
        self._batch_padding = histogram(
            names.BATCH_PADDING_RATIO, "Share of a run's tokens that were padding.", PADDING_BUCKETS
        )
        self.loop_lag = histogram(
            names.LOOP_LAG,
            "How much later than asked for the event loop woke a timer, ten times a second.",
            LAG_BUCKETS,
        )

    def _add_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, registry=registry)

        self._texts = counter(names.TEXTS, "Texts encoded.")
        self._tokens = counter(names.TOKENS, "Tokens encoded, special tokens included.")
        self._truncated_texts = counter(names.TRUNCATED_TEXTS, "Texts encoded whose end was cut off.")
        self._attention_requests = counter(names.ATTENTION_REQUESTS, "Requests answered with attention weights.")
        self._attention_bytes = counter(names.ATTENTION_BYTES, "Attention weights answered, in bytes of float32.")
        self._padding_tokens = counter(names.PADDING_TOKENS, "Positions of batches that were padding.")
        self._busy = counter(names.WORKER_BUSY, "Time that workers spent running the model, all of them together.")
        self._caller_deadlines = counter(
            names.CALLER_DEADLINES, "Requests answered 504 whose X-Request-Timeout was shorter than ours."
        )
        self._disconnects = counter(names.CLIENT_DISCONNECTS, "Clients that left before their answer.")

    def _add_gauges(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, start: float = 0) -> Gauge:
            made = Gauge(name, text, registry=registry)
            made.set(start)
            return made

        self.in_flight = gauge(names.REQUESTS_IN_FLIGHT, "Requests being answered.")
        self._queue_texts = gauge(names.QUEUE_TEXTS, "Texts waiting for a worker.")
        self._queue_tokens = gauge(names.QUEUE_TOKENS, "Tokens waiting for a worker.")
        self._queue_limit = gauge(names.QUEUE_LIMIT_TOKENS, "Tokens that may wait; beyond, requests are refused.")
        self._queue_age = gauge(names.QUEUE_OLDEST_AGE, "How long the text that waits longest has waited.")
        self._ready = gauge(names.READY, "1 while the process takes traffic, else 0.")
        self._load_seconds = gauge(names.MODEL_LOAD, "What verifying, loading and warming up the model took.", math.nan)
        self._workers = gauge(names.WORKERS, "Threads that run the model.")
        self._intra_op_threads = gauge(names.INTRA_OP_THREADS, "Threads of ONNX Runtime inside one run.")
        self._cpu_limit = gauge(names.CPU_LIMIT, "Cores that affinity and cgroup leave this process.", math.nan)
        self._memory_limit = gauge(names.MEMORY_LIMIT, "Memory that cgroup and machine leave this process.", math.nan)
        self._model_info = Gauge(
            names.MODEL_INFO,
            "The model that answers.",
            ("model", "source", "revision", "precision", "weights_sha256", "provider"),
            registry=registry,
        )

    def write(self, accept: str, whole: Snapshot | None = None) -> tuple[bytes, str]:
        """The page and its content type: Prometheus' text format, or OpenMetrics where `accept` names it.

        Takes 20 microseconds a line. Called on a thread: the event loop has no time for a thousand lines.

        Args:
            accept: header of the request.
            whole: what is written in place of this process's own metrics: those of all processes.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self.registry if whole is None else SnapshotCollector(whole)), content_type

    def watch_readiness(self, is_ready: Callable[[], bool]) -> None:
        """Reads `polyhead_ready` from here at each scrape."""
        self._ready.set_function(lambda: float(is_ready()))

    def watch_queue(self, texts: Callable[[], int], tokens: Callable[[], int], age: Callable[[], float]) -> None:
        """Reads the queue's gauges from here at each scrape."""
        self._queue_texts.set_function(texts)
        self._queue_tokens.set_function(tokens)
        self._queue_age.set_function(age)

    def set_limits(self, *, cores: float, memory_bytes: int | None, queue_tokens: int) -> None:
        """Sets what this process may use; memory is NaN if nobody knows."""
        self._cpu_limit.set(cores)
        self._memory_limit.set(math.nan if memory_bytes is None else memory_bytes)
        self._queue_limit.set(queue_tokens)

    def set_model(self, labels: dict[str, str], *, workers: int, intra_op_threads: int, load_seconds: float) -> None:
        """Sets which model answers, with how many threads, and how long it took to load."""
        self._model_info.labels(**labels).set(1)
        self._workers.set(workers)
        self._intra_op_threads.set(intra_op_threads)
        self._load_seconds.set(load_seconds)

    def observe_batch(self, batch: BatchRecord) -> None:
        """Counts one run of the model; called on the workers' threads."""
        self._batch_texts.observe(batch.texts)
        self._batch_tokens.observe(batch.tokens)
        self._batch_padding.observe(1 - batch.tokens / batch.padded_tokens)
        self._padding_tokens.inc(batch.padded_tokens - batch.tokens)
        self._busy.inc(batch.inference_seconds)

    def observe_texts(self, lengths: Sequence[int], *, truncated: int) -> None:
        """Counts the texts of one answered request: their tokens, and how many were cut."""
        self._texts.inc(len(lengths))
        self._tokens.inc(sum(lengths))
        self._truncated_texts.inc(truncated)
        for length in lengths:
            self._input_tokens.observe(length)

    def observe_attention(self, size: int) -> None:
        """Counts one answer with attention weights, by its bytes of float32."""
        self._attention_requests.inc()
        self._attention_bytes.inc(size)

    def count_refusal(self, code: str) -> None:
        """Counts a refused request, also one that never became a request."""
        if (refused := self._rejected.get(code)) is not None:
            refused.inc()

    def count_early_refusal(self, route: str, method: str, code: str) -> None:
        """Counts a request that was refused from its head alone, which took no time."""
        self._duration_of(route, method, 429).observe(0)
        self.count_refusal(code)

    def observe_context(self, context: RequestContext, seconds: float) -> None:
        """Counts one finished request."""
        self._duration_of(context.route, context.method, context.status).observe(seconds, _exemplar(context))
        if context.status == 504 and context.has_own_deadline:
            self._caller_deadlines.inc()
        if context.status == 200 and context.method == "POST" and context.tokens:
            self._answers[_size(context.tokens)].observe(seconds)
        if context.is_abandoned:
            self._disconnects.inc()
        elif context.error_code is not None:
            self.count_refusal(context.error_code)


def _size(tokens: int) -> str:
    return next(size for size, most in SIZES.items() if tokens <= most)


def _exemplar(context: RequestContext) -> dict[str, str] | None:
    if context.trace_id is not None:
        return {"trace_id": context.trace_id}
    name = "request_id"
    if len(name) + len(context.request_id) > _EXEMPLAR_CHARACTERS:
        return None
    return {name: context.request_id}
