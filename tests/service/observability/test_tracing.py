"""Spans of requests, with the SDK's own in-memory exporter; and that nothing of it is there if it is off."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from service.context import RequestContext
from service.observability.logs import REQUEST_LOGGER
from service.observability.stages import TracingUnavailable, current_trace, open_tracing
from service.observability.tracing import OpenTelemetryTracing
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import FakeBackend
from tests.service.process import fake_server

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
STAGES = ["tokenize", "queue", "inference", "postprocess", "serialize"]
CANARY = "xylophonist"


class Traced:
    """A service whose spans are kept."""

    def __init__(self, serve: Serve, *flags: str, share: float = 1.0, backend: FakeBackend | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        tracing = OpenTelemetryTracing(SimpleSpanProcessor(self.exporter), share=share)
        self.served: Served = serve(*flags, tracing=tracing, backend=backend)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced(serve: Serve) -> Traced:
    return Traced(serve)


def ids(span: ReadableSpan) -> tuple[str, str]:
    """Of its trace, and its own."""
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def times(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


def test_stages_are_spans_below_the_requests(traced: Traced) -> None:
    traced.served.encode({"inputs": ["cat", "the cat sat"]}, X_Request_Id="req-1")
    spans = traced.spans
    assert sorted(spans) == sorted([*STAGES, "POST /encode"])
    root = spans["POST /encode"]
    assert root.kind is SpanKind.SERVER
    assert root.parent is None
    assert root.status.status_code is StatusCode.UNSET
    assert dict(root.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/encode",
        "http.response.status_code": 200,
        "polyhead.request_id": "req-1",
        "polyhead.texts": 2,
        "polyhead.tokens": 8,
        "polyhead.truncated": 0,
    }
    for stage in STAGES:
        assert spans[stage].parent == root.get_span_context()
        assert not spans[stage].attributes


def test_spans_follow_each_other_and_stand_in_the_present(serve: Serve) -> None:
    backend = FakeBackend()
    backend.seconds = 0.05
    traced = Traced(serve, backend=backend)
    before = time.time_ns()
    traced.served.encode({"inputs": "cat"})
    after = time.time_ns()
    began, ended = times(traced.spans["POST /encode"])
    assert before - 10**7 <= began < ended <= after + 10**7  # clocks are read one after the other
    moments = [moment for stage in STAGES for moment in times(traced.spans[stage])]
    assert moments == sorted(moments)
    assert began <= moments[0]
    assert moments[-1] <= ended
    start, end = times(traced.spans["inference"])
    assert end - start >= 0.05e9


def test_a_clock_that_is_set_changes_no_duration(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    hour_ago = SimpleNamespace(time_ns=lambda: time.time_ns() - 3600 * 10**9, monotonic=time.monotonic)
    monkeypatch.setattr("service.observability.tracing.time", hour_ago)  # the SDK's own clock is right
    traced.served.encode({"inputs": "cat"})
    began, ended = times(traced.spans["POST /encode"])
    assert ended - began < 60 * 10**9


def test_callers_trace_goes_on(traced: Traced) -> None:
    answer = traced.served.encode({"inputs": "cat"}, traceparent=SAMPLED, tracestate="vendor=1")
    root = traced.spans["POST /encode"]
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == PARENT
    trace_id, span_id = ids(root)
    assert trace_id == TRACE
    assert answer.headers["traceparent"] == f"00-{TRACE}-{span_id}-01"
    assert answer.headers["tracestate"] == "vendor=1"


def test_caller_decides_whether_its_trace_is_kept(traced: Traced, serve: Serve) -> None:
    answer = traced.served.encode({"inputs": "cat"}, traceparent=UNSAMPLED)
    assert not traced.spans
    assert answer.headers["traceparent"].startswith(f"00-{TRACE}-")
    assert answer.headers["traceparent"].endswith("-00")
    never = Traced(serve, share=0.0)
    never.served.encode({"inputs": "cat"})
    assert not never.spans
    never.served.encode({"inputs": "cat"}, traceparent=SAMPLED)
    assert "POST /encode" in never.spans


def test_what_is_no_traceparent_starts_a_trace(traced: Traced) -> None:
    for given in ("nonsense", f"00-{'0' * 32}-{PARENT}-01", "\xff\xfe", "x" * 5000):
        traced.served.client.post("/encode", json={"inputs": "cat"}, headers={b"traceparent": given.encode("latin-1")})
        assert traced.spans["POST /encode"].parent is None, given


def test_failures_are_marked(serve: Serve) -> None:
    backend = FakeBackend()
    backend.fails = True
    traced = Traced(serve, backend=backend)
    traced.served.encode({"inputs": 7})
    refused = traced.spans["POST /encode"]
    assert refused.status.status_code is StatusCode.UNSET  # the caller's fault
    assert (refused.attributes or {})["error.type"] == "invalid"
    traced.served.encode({"inputs": "slow"})
    failed = traced.spans["POST /encode"]
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["http.response.status_code"] == 500
    assert "queue" in traced.spans


def test_probes_and_scrapes_are_not_traced(traced: Traced) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/health", "/v2/health/live", "/v2/health/ready"):
        assert "traceparent" not in traced.served.client.get(path).headers
    assert not traced.spans


def test_no_text_stands_in_a_span(traced: Traced) -> None:
    traced.served.encode({"inputs": [CANARY, f"the {CANARY}"], "attention": {"layers": [0]}})
    traced.served.client.post("/tokenize", json={"inputs": CANARY})
    traced.served.encode({"inputs": {"text": CANARY}})
    traced.served.client.get(f"/{CANARY}?q={CANARY}")
    written = "".join(span.to_json() for span in traced.exporter.get_finished_spans())
    assert "POST /tokenize" in written
    assert "GET unmatched" in written
    assert CANARY not in written


@pytest.mark.parametrize("state", [f"{CANARY} \xe9", "vendor=1," * 2000, ",".join(f"k{n}=v" for n in range(40))])
def test_a_tracestate_that_is_none_is_left_out_and_not_logged(
    traced: Traced, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    headers = {b"traceparent": SAMPLED.encode(), b"tracestate": state.encode("latin-1")}
    answer = traced.served.client.get("/info", headers=headers)
    assert answer.headers["traceparent"].startswith(f"00-{TRACE}-")
    assert "tracestate" not in answer.headers
    assert not caplog.records


def test_log_line_and_exemplar_have_the_trace_id(traced: Traced, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, REQUEST_LOGGER):
        traced.served.encode({"inputs": "cat"})
    expected, _ = ids(traced.spans["POST /encode"])
    assert caplog.records[-1].__dict__["fields"]["trace_id"] == expected
    page = traced.served.client.get("/metrics", headers={"accept": "application/openmetrics-text"}).text
    assert f'# {{trace_id="{expected}"}}' in page


def test_requests_do_not_mix(traced: Traced) -> None:
    threads = [threading.Thread(target=traced.served.encode, args=({"inputs": "cat"},)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    children: dict[int, list[str]] = {}
    for span in traced.exporter.get_finished_spans():
        if span.parent is not None:
            children.setdefault(span.parent.span_id, []).append(span.name)
    assert len(children) == 8
    assert all(sorted(names) == sorted(STAGES) for names in children.values())
    assert current_trace.get() is None


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "service.observability.tracing")
    with pytest.raises(TracingUnavailable, match=r"no module opentelemetry\.exporter\S*\): pip install .*tracing"):
        open_tracing("http://127.0.0.1:4318/v1/traces", 1.0)


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """A collector that keeps what it is sent."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
        server.shutdown()
        thread.join()


def test_process_sends_its_spans_before_it_ends(fake_artifact: Path, collector: tuple[str, list[bytes]]) -> None:
    endpoint, bodies = collector
    with fake_server(fake_artifact, "--trace-endpoint", endpoint).wait_until_ready() as process:
        _, headers, _ = process.request("POST", "/encode", {"inputs": "cat"}, traceparent=SAMPLED)
        assert process.stop() == 0
    received = [ExportTraceServiceRequest.FromString(body) for body in bodies]
    resources = [resource for request in received for resource in request.resource_spans]
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert {span.name for span in spans} == {*STAGES, "POST /encode"}
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert {item.value.string_value for item in resources[0].resource.attributes if item.key == "service.name"} == {
        "polyhead"
    }
    assert headers["traceparent"].startswith(f"00-{TRACE}-")


def test_operators_name_the_service_as_the_sdk_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "minilm")
    tracing = OpenTelemetryTracing(SimpleSpanProcessor(InMemorySpanExporter()), share=1.0)
    assert tracing._provider.resource.attributes["service.name"] == "minilm"


def test_collector_that_hangs_holds_the_end_up_once_not_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.observability.tracing.EXPORT_SECONDS", 0.05)
    exporter, free = InMemorySpanExporter(), threading.Event()
    monkeypatch.setattr(exporter, "export", lambda _: free.wait(30))
    tracing = OpenTelemetryTracing(BatchSpanProcessor(exporter, max_export_batch_size=1), share=1.0)
    for context in [RequestContext("/encode", "POST", []) for _ in range(3)]:
        trace = tracing.start(context)
        assert trace is not None
        trace.finish(context)
    began = time.monotonic()
    tracing.close()
    taken = time.monotonic() - began
    free.set()
    assert taken < 10
