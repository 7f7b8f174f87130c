"""Every metric of the contract: its name, its labels, its figures after known requests."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from service.jobs import BatchRecord
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import FakeBackend

CONTRACT = {
    "polyhead_request_duration_seconds": {"route", "method", "status"},
    "polyhead_stage_duration_seconds": {"stage"},
    "polyhead_batch_texts": set(),
    "polyhead_batch_tokens": set(),
    "polyhead_batch_padding_ratio": set(),
    "polyhead_queue_texts": set(),
    "polyhead_queue_tokens": set(),
    "polyhead_requests_in_flight": set(),
    "polyhead_texts": set(),
    "polyhead_tokens": set(),
    "polyhead_truncated_texts": set(),
    "polyhead_attention_requests": set(),
    "polyhead_attention_bytes": set(),
    "polyhead_requests_rejected": {"reason"},
    "polyhead_client_disconnects": set(),
    "polyhead_ready": set(),
}


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
    assert "process_resident_memory_bytes" in found


def test_series_start_at_0(served: Served) -> None:
    assert served.metric("polyhead_requests_rejected_total", reason="overloaded") == 0
    for status in ("200", "422", "429", "499", "504"):
        labels = {"route": "/encode", "method": "POST", "status": status}
        assert served.metric("polyhead_request_duration_seconds_count", **labels) == 0
    for stage in ("tokenize", "queue", "inference", "postprocess", "serialize"):
        assert served.metric("polyhead_stage_duration_seconds_count", stage=stage) == 0


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
    served.services.metrics.observe_batch(BatchRecord(texts=2, tokens=12, padded_tokens=16, inference_seconds=0.1))
    assert served.metric("polyhead_batch_padding_ratio_sum") == 0.25
    assert served.metric("polyhead_batch_padding_ratio_bucket", le="0.2") == 0
    assert served.metric("polyhead_batch_padding_ratio_bucket", le="0.3") == 1


def test_label_values_are_bounded(served: Served) -> None:
    for index in range(50):
        served.client.request(f"M{index}", f"/path/{index}?q={index}")
        served.client.get(f"/static/{index}.js")
    labels = {
        (sample.labels["route"], sample.labels["method"])
        for sample in families(served)["polyhead_request_duration_seconds"].samples
    }
    assert {route for route, _ in labels} <= {
        *("/", "/docs", "/encode", "/healthz", "/heads", "/info", "/metrics", "/openapi.json", "/readyz", "/tokenize"),
        *("/static/{path:path}", "unmatched"),
    }
    assert {method for _, method in labels} == {"GET", "POST", "other"}


def test_openmetrics_where_it_is_accepted(served: Served) -> None:
    response = served.client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
