"""Spans of requests, sent to a collector by OpenTelemetry's SDK: the extra `tracing`.

Nothing imports this module where tracing is off. Spans hold routes, statuses, counts and times; never a text.
"""

import logging
import threading
import time
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.context import RequestContext
from service.machine import DISTRIBUTION, own_version

EXPORT_SECONDS = 5.0  # for one batch to reach the collector; also what the end of the process may wait

_PROPAGATOR = TraceContextTextMapPropagator()
_NANOSECONDS = 1_000_000_000


class OpenTelemetryTracing:
    """Starts a span for every request, sampled as its caller decided; of the others a share, from 0 to 1."""

    def __init__(self, processor: SpanProcessor, *, share: float) -> None:
        logging.getLogger(trace.__name__).setLevel(logging.ERROR)  # its warnings quote headers that it does not take
        own = Resource.create({SERVICE_NAME: DISTRIBUTION, SERVICE_VERSION: own_version()})
        resource = own.merge(OTELResourceDetector().detect())  # what OTEL_... variables say wins
        sampler = ParentBased(TraceIdRatioBased(share))
        self._provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(DISTRIBUTION, own_version())

    @classmethod
    def to_collector(cls, endpoint: str, *, share: float) -> "OpenTelemetryTracing":
        """Sends spans in batches from a thread, over OTLP and HTTP. Drops those that are not taken in time."""
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)), share=share)

    def start(self, context: RequestContext) -> "RequestTrace":
        """The span of a request that begins."""
        return RequestTrace(self._tracer, context)

    def close(self) -> None:
        """Sends the spans that are left, for 5 seconds at most. The SDK's own end may take 30."""
        ending = threading.Thread(target=self._provider.shutdown, name="polyhead-tracing-end", daemon=True)
        ending.start()
        ending.join(EXPORT_SECONDS)


class RequestTrace:
    """A request's span; its stages become spans below it."""

    def __init__(self, tracer: trace.Tracer, context: RequestContext) -> None:
        self._tracer = tracer
        self._epoch = time.time_ns() - round(time.monotonic() * _NANOSECONDS)
        names = ("traceparent", "tracestate")  # an empty one is as good as none
        carrier = {name: context.headers.get(name.encode("ascii"), b"").decode("latin-1") for name in names}
        self._span = tracer.start_span(
            f"{context.method} {context.route}",
            context=_PROPAGATOR.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": context.method,
                "http.route": context.route,
                "polyhead.request_id": context.request_id,
            },
            start_time=self._nanoseconds(context.started),
        )
        self._context = trace.set_span_in_context(self._span)
        if self._span.is_recording():
            context.trace_id = trace.format_trace_id(self._span.get_span_context().trace_id)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """`traceparent` of this request's span, and `tracestate` if there is one."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, self._context)
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in carrier.items()]

    def add_stage(self, name: str, started: float, ended: float) -> None:
        """A span below the request's."""
        if self._span.is_recording():
            span = self._tracer.start_span(name, self._context, start_time=self._nanoseconds(started))
            span.end(self._nanoseconds(ended))

    def finish(self, context: RequestContext) -> None:
        """Ends the request's span. By OpenTelemetry's conventions only a server's own fault is an error."""
        if not self._span.is_recording():
            return
        attributes: dict[str, Any] = {"http.response.status_code": context.status}
        if context.error_code is not None:
            attributes["error.type"] = context.error_code
        if context.texts:
            attributes["polyhead.texts"] = context.texts
            attributes["polyhead.tokens"] = context.tokens
            attributes["polyhead.truncated"] = context.truncated
        self._span.set_attributes(attributes)
        if context.status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(self._nanoseconds(time.monotonic()))

    def _nanoseconds(self, moment: float) -> int:
        """A `time.monotonic()` as nanoseconds since 1970. One request has one difference between the clocks."""
        return self._epoch + round(moment * _NANOSECONDS)
