"""Every metric of the contract: its name, its labels, its figures after known requests."""

import asyncio
import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from service.app import ROUTES
from service.context import RequestContext
from service.errors import NotReady
from service.observability import metrics as metric_names
from service.observability.metrics import SIZES
from service.observability.snapshots import PAGES_A_SECOND, MetricsPages
from service.observability.stages import BatchRecord
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import FakeBackend

PAGE = Path(__file__).parents[3] / "docs" / "observability.md"
DOCUMENTED = {  # every metric of the page's table with its labels
    name: set(filter(None, labels.split(",")))
    for row in PAGE.read_text().splitlines()
    if row.startswith("| `polyhead_")
    for name, labels in re.findall(r"`(polyhead_\w+?)(?:_total)?(?:\{([\w,]+)\})?`", row.split(" | ")[0])
}
OF_PARENTS = {"polyhead_processes", "polyhead_process_restarts"}
CONTRACT = {name: DOCUMENTED[name] for name in DOCUMENTED.keys() - OF_PARENTS - {"polyhead_model_info"}}
COUNT = "polyhead_request_duration_seconds_count"
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def families(served: Served) -> dict[str, Any]:
    response = served.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(response.text)}


def test_every_metric_is_there_before_the_first_request(served: Served) -> None:
    found = families(served)
    for name, labels in CONTRACT.items():
        assert found[name].documentation, name
        for sample in found[name].samples:
            assert set(sample.labels) - {"le"} == labels, sample
    assert "polyhead_model_info" in found
    assert {"process_resident_memory_bytes", "process_start_time_seconds"} <= set(found)
    assert {name for name in found if name.startswith("polyhead_")} == {*CONTRACT, "polyhead_model_info"}


def test_names_are_the_module_of_names(served: Served) -> None:
    values = (value for key, value in vars(metric_names).items() if key.isupper())
    listed = {value.removesuffix("_total") for value in values if str(value).startswith("polyhead_")}
    assert listed == set(DOCUMENTED)


def test_successes_errors_and_refusals_start_at_0_and_other_outcomes_when_they_come(served: Served) -> None:
    assert served.metric("polyhead_requests_rejected_total", reason="overloaded") == 0
    labels = {"route": "/encode", "method": "POST"}
    for status in ("200", "500", "503", "504"):
        assert served.metric(COUNT, **labels, status=status) == 0
    for stage in ("tokenize", "queue", "inference", "postprocess", "serialize"):
        assert served.metric("polyhead_stage_duration_seconds_count", stage=stage) == 0
    assert served.metric(COUNT, route="/readyz", method="GET", status="200") == 0
    assert served.services.metrics.registry.get_sample_value(COUNT, {**labels, "status": "422"}) is None
    served.encode({"inputs": []})
    assert served.metric(COUNT, **labels, status="422") == 1
    assert served.client.get("/metrics").text.count("\n") < 2400, "every line is 20 microseconds of a scrape"


def test_requests_texts_and_tokens(served: Served) -> None:
    served.encode({"inputs": ["cat", "the cat " * 20], "attention": {"layers": [0]}})
    served.encode({"inputs": "dog"})
    served.encode({"inputs": []})
    labels = {"route": "/encode", "method": "POST"}
    assert [served.metric(COUNT, **labels, status=status) for status in ("200", "422")] == [2, 1]
    assert served.metric("polyhead_requests_rejected_total", reason="invalid") == 1
    for stage in ("queue", "inference", "postprocess", "serialize"):
        assert served.metric("polyhead_stage_duration_seconds_count", stage=stage) == 2
    assert [served.metric("polyhead_input_tokens_bucket", le=most) for most in ("4.0", "16.0")] == [2, 3]
    figures = {
        "texts_total": 3,
        "tokens_total": 3 + 16 + 3,
        "truncated_texts_total": 1,
        "attention_requests_total": 1,
        "attention_bytes_total": 4 * 2 * (3 * 3 + 16 * 16),
        "requests_in_flight": 0,
        "batch_texts_sum": 3,
        "batch_tokens_sum": 22,
        "input_tokens_sum": 22,
    }
    assert {name: served.metric(f"polyhead_{name}") for name in figures} == figures


def test_answers_are_timed_by_their_size(served: Served) -> None:
    for tokens in (512, 513, 8192, 8193):
        context = RequestContext("/encode", "POST", [])
        context.status, context.tokens, context.model = 200, tokens, served.model.name
        served.services.metrics.observe_context(context, 1.5, has_answer=True)
    found = {name: served.metric("polyhead_answer_duration_seconds_sum", size=name) / 1.5 for name in SIZES}
    assert found == {"small": 1, "medium": 2, "large": 1}


@pytest.mark.parametrize(("given", "counted"), [({"x-request-timeout": "0.05"}, 1), ({}, 0)])
def test_a_deadline_of_the_callers_own_is_told_from_ours(serve: Serve, given: dict[str, str], counted: int) -> None:
    backend = FakeBackend()
    backend.seconds = 0.4
    served = serve("--request-timeout", "0.1", backend=backend)
    assert served.client.post("/encode", json={"inputs": "cat"}, headers=given).status_code == 504
    assert served.metric("polyhead_caller_deadlines_total") == counted


def test_stages_take_what_they_took_and_a_failed_run_is_busy_time(serve: Serve) -> None:
    backend = FakeBackend()
    backend.seconds, backend.fails = 0.06, True
    served = serve(backend=backend)
    served.encode({"inputs": "cat"})
    assert 0.06 <= served.metric("polyhead_stage_duration_seconds_sum", stage="inference") < 0.5
    labels = {"route": "/encode", "method": "POST", "status": "200"}
    assert served.metric("polyhead_request_duration_seconds_bucket", **labels, le="0.05") == 0
    assert served.metric("polyhead_request_duration_seconds_bucket", **labels, le="30.0") == 1
    assert served.encode({"inputs": "slow"}).status_code == 500
    assert served.metric("polyhead_worker_busy_seconds_total") >= 0.12


def test_padding_ratio_is_the_share_of_padding(served: Served) -> None:
    served.model.observe_batch(BatchRecord(texts=2, tokens=12, padded_tokens=16, inference_seconds=0.1))
    shares = [served.metric("polyhead_batch_padding_ratio_bucket", le=most) for most in ("0.2", "0.3")]
    assert (shares, served.metric("polyhead_batch_padding_ratio_sum")) == ([0, 1], 0.25)
    assert served.metric("polyhead_padding_tokens_total") == 4
    assert served.metric("polyhead_worker_busy_seconds_total") == 0.1


def test_label_values_are_bounded(served: Served) -> None:
    for index in range(10):
        served.client.request(f"M{index}", f"/path/{index}?q={index}")
        served.client.get(f"/static/{index}.js")
        served.client.get(f"/v1/models/{index}")
        served.client.post(f"/v2/models/{index}/infer")
    samples = families(served)["polyhead_request_duration_seconds"].samples
    labels = {(sample.labels["route"], sample.labels["method"]) for sample in samples}
    assert {route for route, _ in labels} <= {route.path for route in ROUTES} | {"unmatched"}
    assert {method for _, method in labels} == {"GET", "POST", "DELETE", "other"}


def test_the_page_has_two_forms_whatever_version_a_client_names(shared: Served) -> None:
    for version in ("1.0.0", "1.0.9", "7.5", "latest"):
        for media, head in (("application/openmetrics-text", "; version=1.0.0;"), ("text/plain", "; version=0.0.4;")):
            response = shared.client.get("/metrics", headers={"accept": f"{media};version={version}"})
            assert response.headers["content-type"].startswith(media + head)
    page = shared.client.get("/metrics", headers=OPENMETRICS).text
    assert (page.count("# EOF"), page.endswith("# EOF\n")) == (1, True)
    assert {family.name for family in parse_openmetrics(page)} >= set(CONTRACT)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("headers", "exemplar"),
    [
        ({"X_Request_Id": "req-1"}, {"request_id": "req-1"}),
        ({"X_Request_Id": "x" * 118}, {"request_id": "x" * 118}),
        ({"X_Request_Id": "x" * 119}, None),  # too long
        ({"X_Request_Id": "req-1", "traceparent": TRACEPARENT}, {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}),
    ],
)
def test_exemplar_is_the_trace_id_else_the_request_id(
    served: Served, headers: dict[str, str], exemplar: dict[str, str] | None
) -> None:
    served.encode({"inputs": "cat"}, **headers)
    page = served.client.get("/metrics", headers=OPENMETRICS).text
    families: Any = parse_openmetrics(page)  # type: ignore[no-untyped-call]  # published without annotations
    samples = (sample for family in families for sample in family.samples)
    found = [sample.exemplar.labels for sample in samples if sample.exemplar and sample.labels["route"] == "/encode"]
    assert found == ([] if exemplar is None else [exemplar])
    assert served.metric(COUNT, route="/encode", method="POST", status="200") == 1
    assert " # {" not in served.client.get("/metrics").text


async def test_pages_of_each_form_are_written_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, asked, now = CollectorRegistry(), itertools.count(1), [0.0]
    Gauge("looked_at", "How often.", registry=registry).set_function(lambda: next(asked))
    monkeypatch.setattr("service.observability.snapshots.time", SimpleNamespace(monotonic=lambda: now[0]))

    async def alone() -> None:
        return None

    pages = MetricsPages(registry)
    for now[0], form in ((0.0, ""), (0.5, ""), (0.5, "application/openmetrics-text"), (1.0, "")):
        before = next(asked)
        for _ in range(20):
            leaving = asyncio.create_task(pages.read(form, alone))
            await asyncio.sleep(0)
            leaving.cancel()
            read = await asyncio.gather(*(pages.read(form, alone) for _ in range(5)))
        expected = 0 if now[0] == 0.5 and not form else PAGES_A_SECOND
        assert next(asked) - before - 1 == expected
        assert read[-1][1].startswith(form or "text/plain")
        assert read[-1][0]


async def test_scrapes_that_wait_together_fail_together() -> None:
    snapshot = AsyncMock(side_effect=NotReady("the parent process does not answer"))
    pages = MetricsPages(CollectorRegistry())
    found = await asyncio.gather(*(pages.read("", snapshot) for _ in range(5)), return_exceptions=True)
    assert [type(one) for one in found] == [NotReady] * 5
    assert snapshot.call_count == 1, "else the last of them would wait five times as long"
