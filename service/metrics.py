"""What Prometheus scrapes: base units, millisecond-scale buckets, label values from closed sets.

Each app has its own registry. Every label combination that can occur is there from the start with 0, so that a rate
over a first error is a number and not a gap.
"""

from collections.abc import Callable, Iterable
from typing import Literal, get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from service.exchange import Exchange
from service.jobs import BatchRecord

Stage = Literal["tokenize", "queue", "inference", "postprocess", "serialize"]

CLIENT_CLOSED = 499  # nginx's status for a client that left: seen in log and metrics only, nobody is there to read it

REQUEST_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
STAGE_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
TEXTS_BUCKETS = tuple(2**power for power in range(10))
TOKENS_BUCKETS = tuple(2**power for power in range(4, 17))
PADDING_BUCKETS = (0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1)


class Metrics:
    """All metrics of one app."""

    def __init__(self, routes: Iterable[tuple[str, str, int]], reasons: Iterable[str]) -> None:
        """Makes every series.

        Args:
            routes: every (route template, method, status) that can occur.
            reasons: codes of the errors that are refusals.
        """
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # published without annotations
        self.registry = registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        prometheus_client.PlatformCollector(registry=registry)
        prometheus_client.GCCollector(registry=registry)
        self._request_duration = Histogram(
            "polyhead_request_duration_seconds",
            "From the request's headers to the end of its answer. Status 499: the client left.",
            ("route", "method", "status"),
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self._durations = {key: self._duration_of(*key) for key in routes}
        stage_duration = Histogram(
            "polyhead_stage_duration_seconds",
            "Time by stage, once a request; queue and inference are the longest among its texts.",
            ("stage",),
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self.stages: dict[Stage, Histogram] = {stage: stage_duration.labels(stage) for stage in get_args(Stage)}
        rejected = Counter(
            "polyhead_requests_rejected_total", "Requests refused, by error code.", ("reason",), registry=registry
        )
        self._rejected = {reason: rejected.labels(reason) for reason in reasons}
        self._add_batches(registry)
        self._add_counters(registry)
        self._add_gauges(registry)

    def _add_batches(self, registry: CollectorRegistry) -> None:
        self._batch_texts = Histogram(
            "polyhead_batch_texts", "Texts in one run of the model.", buckets=TEXTS_BUCKETS, registry=registry
        )
        self._batch_tokens = Histogram(
            "polyhead_batch_tokens",
            "Tokens in one run of the model, without padding.",
            buckets=TOKENS_BUCKETS,
            registry=registry,
        )
        self._batch_padding = Histogram(
            "polyhead_batch_padding_ratio",
            "Share of a run's tokens that were padding.",
            buckets=PADDING_BUCKETS,
            registry=registry,
        )

    def _add_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, registry=registry)

        self.texts = counter("polyhead_texts_total", "Texts encoded.")
        self.tokens = counter("polyhead_tokens_total", "Tokens encoded, special tokens included.")
        self.truncated_texts = counter("polyhead_truncated_texts_total", "Texts encoded whose end was cut off.")
        self.attention_requests = counter(
            "polyhead_attention_requests_total", "Requests answered with attention weights."
        )
        self.attention_bytes = counter(
            "polyhead_attention_bytes_total", "Attention weights answered, in bytes of float32."
        )
        self._disconnects = counter("polyhead_client_disconnects_total", "Clients that left before their answer.")

    def _add_gauges(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry)

        self.in_flight = gauge("polyhead_requests_in_flight", "Requests being answered.")
        self._queue_texts = gauge("polyhead_queue_texts", "Texts waiting for a worker.")
        self._queue_tokens = gauge("polyhead_queue_tokens", "Tokens waiting for a worker.")
        self._queue_age = gauge("polyhead_queue_oldest_age_seconds", "How long the text that waits longest has waited.")
        self._ready = gauge("polyhead_ready", "1 while the process takes traffic, else 0.")
        self._workers = gauge("polyhead_workers", "Threads that run the model.")
        self._intra_op_threads = gauge("polyhead_intra_op_threads", "Threads of ONNX Runtime inside one run.")
        self._model_info = Gauge(
            "polyhead_model_info",
            "The model that answers.",
            ("model", "source", "revision", "precision", "weights_sha256", "provider"),
            registry=registry,
        )

    def watch_readiness(self, is_ready: Callable[[], bool]) -> None:
        """Reads `polyhead_ready` from here at each scrape."""
        self._ready.set_function(lambda: float(is_ready()))

    def watch_queue(self, texts: Callable[[], int], tokens: Callable[[], int], age: Callable[[], float]) -> None:
        """Reads the queue's gauges from here at each scrape."""
        self._queue_texts.set_function(texts)
        self._queue_tokens.set_function(tokens)
        self._queue_age.set_function(age)

    def set_model(self, labels: dict[str, str], *, workers: int, intra_op_threads: int) -> None:
        """Says which model answers and with how many threads."""
        self._model_info.labels(**labels).set(1)
        self._workers.set(workers)
        self._intra_op_threads.set(intra_op_threads)

    def observe_batch(self, batch: BatchRecord) -> None:
        """Counts one run of the model; called on the workers' threads."""
        self._batch_texts.observe(batch.texts)
        self._batch_tokens.observe(batch.tokens)
        self._batch_padding.observe(1 - batch.tokens / batch.padded_tokens)

    def count_refusal(self, code: str) -> None:
        """Counts a refused request, also one that never became a request."""
        if (refused := self._rejected.get(code)) is not None:
            refused.inc()

    def observe_exchange(self, exchange: Exchange, seconds: float) -> None:
        """Counts one finished request."""
        key = (exchange.route, exchange.method, exchange.status)
        duration = self._durations.get(key)
        if duration is None:
            duration = self._durations[key] = self._duration_of(*key)
        duration.observe(seconds)
        if exchange.is_abandoned:
            self._disconnects.inc()
        elif exchange.error_code is not None:
            self.count_refusal(exchange.error_code)

    def _duration_of(self, route: str, method: str, status: int) -> Histogram:
        return self._request_duration.labels(route, method, str(status))
