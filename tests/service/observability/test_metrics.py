"""Every metric of the contract: its name, its labels, its figures after known requests."""

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from service.app import ROUTES
from service.context import RequestContext
from service.observability import metrics as metric_names
from service.observability.metrics import SIZES
from service.observability.snapshots import PAGES_A_SECOND, MetricsPages
from service.observability.stages import BatchRecord
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import FakeBackend
from tests.service.process import ServerProcess, wait_until

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


def test_series_start_at_0(served: Served) -> None:
    assert served.metric("polyhead_requests_rejected_total", reason="overloaded") == 0
    for status in ("200", "500", "503", "504"):
        labels = {"route": "/encode", "method": "POST", "status": status}
        assert served.metric("polyhead_request_duration_seconds_count", **labels) == 0
    for stage in ("tokenize", "queue", "inference", "postprocess", "serialize"):
        assert served.metric("polyhead_stage_duration_seconds_count", stage=stage) == 0
    assert served.metric(COUNT, route="/readyz", method="GET", status="200") == 0


def test_other_outcomes_have_no_series_before_they_come(served: Served) -> None:
    labels = {"route": "/encode", "method": "POST", "status": "422"}
    assert served.services.metrics.registry.get_sample_value(COUNT, labels) is None
    served.encode({"inputs": []})
    assert served.metric(COUNT, **labels) == 1
    lines = served.client.get("/metrics").text.count("\n")
    assert lines < 2400, "every line is 20 microseconds of a scrape"


def test_requests_texts_and_tokens(served: Served) -> None:
    served.encode({"inputs": ["cat", "the cat " * 20], "attention": {"layers": [0]}})
    served.encode({"inputs": "dog"})
    served.encode({"inputs": []})
    labels = {"route": "/encode", "method": "POST"}
    assert served.metric("polyhead_request_duration_seconds_count", **labels, status="200") == 2
    assert served.metric("polyhead_request_duration_seconds_count", **labels, status="422") == 1
    assert served.metric("polyhead_texts_total") == 3
    assert served.metric("polyhead_tokens_total") == 3 + 16 + 3
    assert served.metric("polyhead_truncated_texts_total") == 1
    assert served.metric("polyhead_attention_requests_total") == 1
    assert served.metric("polyhead_attention_bytes_total") == 4 * 2 * (3 * 3 + 16 * 16)
    assert served.metric("polyhead_requests_rejected_total", reason="invalid") == 1
    assert served.metric("polyhead_requests_in_flight") == 0
    for stage in ("queue", "inference", "postprocess", "serialize"):
        assert served.metric("polyhead_stage_duration_seconds_count", stage=stage) == 2
    assert served.metric("polyhead_batch_texts_sum") == 3
    assert served.metric("polyhead_batch_tokens_sum") == 22
    assert served.metric("polyhead_input_tokens_sum") == 22
    assert served.metric("polyhead_input_tokens_bucket", le="4.0") == 2
    assert served.metric("polyhead_input_tokens_bucket", le="16.0") == 3


@pytest.mark.parametrize(("tokens", "size"), [(512, "small"), (513, "medium"), (8192, "medium"), (8193, "large")])
def test_answers_are_timed_by_their_size(served: Served, tokens: int, size: str) -> None:
    context = RequestContext("/encode", "POST", [])
    context.status, context.tokens, context.model = 200, tokens, served.model.name
    served.services.metrics.observe_context(context, 1.5, has_answer=True)
    found = {name: served.metric("polyhead_answer_duration_seconds_count", size=name) for name in SIZES}
    assert found == dict.fromkeys(SIZES, 0) | {size: 1}
    assert served.metric("polyhead_answer_duration_seconds_sum", size=size) == 1.5


@pytest.mark.parametrize(("given", "counted"), [({"x-request-timeout": "0.05"}, 1), ({}, 0)])
def test_a_deadline_of_the_callers_own_is_told_from_ours(serve: Serve, given: dict[str, str], counted: int) -> None:
    backend = FakeBackend()
    backend.seconds = 0.4
    served = serve("--request-timeout", "0.1", backend=backend)
    response = served.client.post("/encode", json={"inputs": "cat"}, headers=given)
    assert response.status_code == 504
    assert served.metric("polyhead_caller_deadlines_total") == counted


def test_stages_take_what_they_took(serve: Serve) -> None:
    backend = FakeBackend()
    backend.seconds = 0.06
    served = serve(backend=backend)
    served.encode({"inputs": "cat"})
    assert 0.06 <= served.metric("polyhead_stage_duration_seconds_sum", stage="inference") < 0.5
    labels = {"route": "/encode", "method": "POST", "status": "200"}
    assert served.metric("polyhead_request_duration_seconds_bucket", **labels, le="0.05") == 0
    assert served.metric("polyhead_request_duration_seconds_bucket", **labels, le="30.0") == 1


def test_padding_ratio_is_the_share_of_padding(served: Served) -> None:
    served.model.observe_batch(BatchRecord(texts=2, tokens=12, padded_tokens=16, inference_seconds=0.1))
    assert served.metric("polyhead_batch_padding_ratio_sum") == 0.25
    assert served.metric("polyhead_batch_padding_ratio_bucket", le="0.2") == 0
    assert served.metric("polyhead_batch_padding_ratio_bucket", le="0.3") == 1
    assert served.metric("polyhead_padding_tokens_total") == 4
    assert served.metric("polyhead_worker_busy_seconds_total") == 0.1


def test_label_values_are_bounded(served: Served) -> None:
    for index in range(50):
        served.client.request(f"M{index}", f"/path/{index}?q={index}")
        served.client.get(f"/static/{index}.js")
        served.client.get(f"/v1/models/{index}")
        served.client.post(f"/v2/models/{index}/infer")
    labels = {
        (sample.labels["route"], sample.labels["method"])
        for sample in families(served)["polyhead_request_duration_seconds"].samples
    }
    assert {route for route, _ in labels} <= {route.path for route in ROUTES} | {"unmatched"}
    assert {method for _, method in labels} == {"GET", "POST", "DELETE", "other"}


def test_openmetrics_where_it_is_accepted(served: Served) -> None:
    response = served.client.get("/metrics", headers=OPENMETRICS)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
    assert response.text.count("# EOF") == 1
    assert {family.name for family in read_openmetrics(served)} >= set(CONTRACT)


def read_openmetrics(served: Served) -> list[Any]:
    page = served.client.get("/metrics", headers=OPENMETRICS).text
    return list(parse_openmetrics(page))  # type: ignore[no-untyped-call]  # published without annotations


def exemplars(served: Served) -> list[Any]:
    samples = (sample for family in read_openmetrics(served) for sample in family.samples)
    return [sample.exemplar.labels for sample in samples if sample.exemplar and sample.labels["route"] == "/encode"]


def test_exemplar_is_the_request_id(served: Served) -> None:
    served.encode({"inputs": "cat"}, X_Request_Id="req-1")
    assert exemplars(served) == [{"request_id": "req-1"}]
    assert "req-1" not in served.client.get("/metrics").text


def test_exemplar_is_the_trace_id_where_there_is_one(served: Served) -> None:
    served.encode({"inputs": "cat"}, X_Request_Id="req-1", traceparent=TRACEPARENT)
    assert exemplars(served) == [{"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}]


def test_request_id_that_is_too_long_for_an_exemplar_is_left_out(served: Served) -> None:
    served.encode({"inputs": "cat"}, X_Request_Id="x" * 119)
    assert exemplars(served) == []
    assert served.metric("polyhead_request_duration_seconds_count", route="/encode", method="POST", status="200") == 1
    served.encode({"inputs": "cat"}, X_Request_Id="x" * 118)
    assert exemplars(served) == [{"request_id": "x" * 118}]


def test_figures_of_the_process(fake_artifact: Path) -> None:
    """Limits are set by the server; what is unknown is no number, so that no alert compares with it."""
    with ServerProcess(
        "tests.service.fake_server", "--model", str(fake_artifact), "--max-queue-tokens", "70000"
    ) as server:
        server.wait_until_ready()
        wait_until(lambda: scrape(server)["polyhead_event_loop_lag_seconds_count"] > 1)
        found = scrape(server)
    assert found["polyhead_queue_limit_tokens"] == 70_000
    assert 0 < found["polyhead_cpu_limit_cores"] <= len(os.sched_getaffinity(0))
    assert found["process_resident_memory_bytes"] < found["polyhead_memory_limit_bytes"]
    assert 0 < found["polyhead_model_load_seconds"] < 60
    assert abs(found["process_start_time_seconds"] - time.time()) < 120


def scrape(server: ServerProcess) -> dict[str, float]:
    page = server.request("GET", "/metrics")[2].decode()
    families = text_string_to_metric_families(page)
    samples = (sample for family in families for sample in family.samples if set(sample.labels) <= {"model"})
    return {sample.name: sample.value for sample in samples}


def test_a_failed_run_is_busy_time(serve: Serve) -> None:
    backend = FakeBackend()
    backend.seconds, backend.fails = 0.05, True
    served = serve(backend=backend)
    assert served.encode({"inputs": "slow"}).status_code == 500
    assert served.metric("polyhead_worker_busy_seconds_total") >= 0.05


async def test_pages_are_written_a_few_times_a_second_at_most() -> None:
    registry, asked = CollectorRegistry(), 0
    gauge = Gauge("looked_at", "How often.", registry=registry)

    def look() -> float:
        nonlocal asked
        asked += 1
        return asked

    gauge.set_function(look)

    async def alone() -> None:
        return None

    pages = MetricsPages(registry)
    read = [await pages.read("", alone) for _ in range(20)]
    assert asked == PAGES_A_SECOND
    assert f"looked_at {PAGES_A_SECOND}.0" in read[-1][0].decode()
    content_type = (await pages.read("application/openmetrics-text", alone))[1]
    assert content_type.startswith("application/openmetrics-text"), "a form that was not written yet"
