"""What tracing asks of the rest of the service: stages, noted as they end. It knows no tracing library.

Where tracing is off nothing of it runs but a look at a context variable, which holds None.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from service.context import RequestContext


class RequestTrace(Protocol):
    """One request in a trace. Times are `time.monotonic()`'s."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What the answer says of the trace."""
        ...

    def add_stage(self, name: str, started: float, ended: float) -> None:
        """Notes a stage of the request that has ended."""
        ...

    def finish(self, context: RequestContext) -> None:
        """Notes the end of the request, and what became of it."""
        ...


class Tracing(Protocol):
    """Starts traces."""

    def start(self, context: RequestContext) -> RequestTrace:
        """The trace of a request that begins; where it is sampled, the context gets its trace id."""
        ...

    def close(self) -> None:
        """Sends what is left, for seconds at most. Blocks."""
        ...


class TracingUnavailable(Exception):
    """Tracing is asked for and its packages are not installed; the message says which extra has them."""


current_trace: ContextVar[RequestTrace | None] = ContextVar("polyhead_current_trace", default=None)


@contextmanager
def tracing_request(trace: RequestTrace | None) -> Iterator[None]:
    """Makes a trace the current one for what runs inside, on whatever task or thread."""
    if trace is None:
        yield
        return
    token = current_trace.set(trace)
    try:
        yield
    finally:
        current_trace.reset(token)


def note_stage(name: str, started: float, ended: float | None = None) -> None:
    """Notes a stage of the current request that has ended; now, if not told when."""
    if (trace := current_trace.get()) is not None:
        trace.add_stage(name, started, time.monotonic() if ended is None else ended)


def open_tracing(endpoint: str, share: float) -> Tracing | None:
    """Tracing to a collector; None, and nothing of it loaded, for an empty endpoint.

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
