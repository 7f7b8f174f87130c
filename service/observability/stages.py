"""The stages of a request: counted in the metrics, and noted for its trace as they end. Knows no tracing library.

While tracing is off a stage costs one look at a context variable, which holds None.
"""

import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # hundreds of modules, and an extra
    from service.observability.metrics import ModelMetrics
    from service.observability.tracing import OpenTelemetryTracing, RequestTrace


Stage = Literal["tokenize", "queue", "inference", "postprocess", "serialize"]


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One run of the model that has ended.

    Attributes:
        texts: 0, as tokens, of a run that was cancelled or failed, and of one that explains.
        tokens: without padding.
        padded_tokens: texts times the longest one's tokens.
    """

    texts: int
    tokens: int
    padded_tokens: int
    inference_seconds: float


class TracingUnavailable(Exception):
    """Tracing is asked for and its packages are not installed; the message says which extra has them."""


current_trace: "ContextVar[RequestTrace | None]" = ContextVar("polyhead_current_trace", default=None)


def open_tracing(endpoint: str, share: float) -> "OpenTelemetryTracing | None":
    """Tracing to a collector; None for an empty endpoint, and none of its modules is loaded then.

    Raises:
        TracingUnavailable: the extra `tracing` is not installed.
    """
    if not endpoint:
        return None
    try:
        from service.observability.tracing import OpenTelemetryTracing  # noqa: PLC0415 - loaded when it is used
    except ModuleNotFoundError as error:
        raise TracingUnavailable(
            f"--trace-endpoint needs the extra tracing (no module {error.name}): pip install '.[cpu,server,tracing]'"
        ) from error
    return OpenTelemetryTracing.to_collector(endpoint, share=share)


def note_stage(name: str, started: float, ended: float | None = None) -> None:
    """Adds a stage to the current request's trace, if it has one; times by `time.monotonic()`, `ended` now if None."""
    if (trace := current_trace.get()) is not None:
        trace.add_stage(name, started, time.monotonic() if ended is None else ended)


@dataclass(slots=True, eq=False)
class StageTimer:
    """Counts a stage from entry to exit, failed or not. A class: a generator would cost as much again."""

    _metrics: "ModelMetrics"
    _stage: Stage
    _started: float = field(init=False)

    def __enter__(self) -> None:
        """The stage begins."""
        self._started = time.monotonic()

    def __exit__(self, *_failure: object) -> None:
        """It has ended."""
        ended = time.monotonic()
        self._metrics.stages[self._stage].observe(ended - self._started)
        note_stage(self._stage, self._started, ended)
