"""The stages of a request, noted for its trace as they end. It knows no tracing library.

While tracing is off a stage costs one look at a context variable, which holds None.
"""

import time
from contextvars import ContextVar
from typing import Protocol

from service.context import RequestContext


class RequestTrace(Protocol):
    """One request in a trace. Times are `time.monotonic()`'s."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer that name the trace."""
        ...

    def add_stage(self, name: str, started: float, ended: float) -> None:
        """Adds a stage that has ended."""
        ...

    def finish(self, context: RequestContext) -> None:
        """Ends the trace with the outcome of the request."""
        ...


class Tracing(Protocol):
    """Starts traces."""

    def start(self, context: RequestContext) -> RequestTrace:
        """The trace of a request that begins; where it is sampled, the context gets its trace id."""
        ...

    def close(self) -> None:
        """Sends the spans that are left. Blocks for seconds at most."""
        ...


class TracingUnavailable(Exception):
    """Tracing is asked for and its packages are not installed; the message says which extra has them."""


current_trace: ContextVar[RequestTrace | None] = ContextVar("polyhead_current_trace", default=None)


def note_stage(name: str, started: float, ended: float | None = None) -> None:
    """Adds a stage to the current request's trace, if it has one. Without `ended` it ended now."""
    if (trace := current_trace.get()) is not None:
        trace.add_stage(name, started, time.monotonic() if ended is None else ended)


def open_tracing(endpoint: str, share: float) -> Tracing | None:
    """Tracing to a collector; None for an empty endpoint, and none of its modules is loaded then.

    Raises:
        TracingUnavailable: the extra `tracing` is not installed.
    """
    if not endpoint:
        return None
    try:
        from service.observability.tracing import OpenTelemetryTracing  # noqa: PLC0415 - hundreds of modules, and an extra
    except ModuleNotFoundError as error:
        message = f"--trace-endpoint needs the extra tracing (no module {error.name}): pip install '.[cpu,tracing]'"
        raise TracingUnavailable(message) from error
    return OpenTelemetryTracing.to_collector(endpoint, share=share)
