"""One declaration adds a route, and everything that depends on what a route is follows."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.requests import Request
from starlette.responses import Response

from model.artifact import HEADS
from service.app import ROUTES
from service.errors import Overloaded
from service.http.route import Route, answer_document
from service.observability.tracing import OpenTelemetryTracing
from service.settings import read_settings
from service.wire import COHERE, TEI, AnswerModel, RequestModel
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import FakeBackend, write_fake_artifact

KEY = {"X-API-Key": "the-only-key-0123456789"}
FLAGS = ("--api-keys", KEY["X-API-Key"])
ORIGIN = "https://notes.example.com"


class Phrase(RequestModel):
    text: str


class Words(AnswerModel):
    words: int


async def count_words(request: Request, body: Phrase) -> Response:
    return Response(str(len(body.text.split())), headers={"X-Longest": "3"}, media_type="application/json")


async def beat(request: Request) -> Response:
    return Response("beating")


WORDS = Route(
    "POST",
    "/words",
    count_words,
    is_queued=True,
    error_shape=COHERE,
    body_error_shapes={"texts": TEI},
    summary="Count words",
    answer=answer_document(Words, headers={"X-Longest": {"schema": {"type": "integer"}}}),
)
HEARTBEAT = Route("GET", "/heartbeat", beat, access="everyone", is_probe=True)
SECRET = Route("GET", "/secret", beat, access="admin")
MORE = (*ROUTES, WORDS, HEARTBEAT, SECRET)


@pytest.fixture
def served(serve: Serve) -> Served:
    made: Served = serve(*FLAGS, routes=MORE)
    return made


def post(served: Served, text: Any = "a cat sat", **headers: str) -> Any:
    return served.client.post("/words", json={"text": text}, headers={**KEY, **headers})


def test_it_is_found_and_its_body_validated(served: Served) -> None:
    assert (post(served).status_code, post(served).text) == (200, "3")
    assert (post(served, 7).status_code, set(post(served, 7).json())) == (422, {"message"})
    assert served.client.get("/heartbeat").text == "beating"


def test_a_body_of_another_api_fails_in_its_shape(served: Served) -> None:
    refused = served.client.post("/words", json={"texts": ["a"]}, headers=KEY)
    assert (refused.status_code, set(refused.json())) == (422, {"error", "error_type"})
    refused = served.client.post(
        "/words", content=b'{"texts": ["a"', headers={**KEY, "content-type": "application/json"}
    )
    assert (refused.status_code, set(refused.json())) == (400, {"error", "error_type"})
    schema = served.client.get("/openapi.json").json()["paths"]["/words"]["post"]["responses"]["422"]["content"]
    names = {shape["$ref"].rpartition("/")[2] for shape in schema["application/json"]["schema"]["anyOf"]}
    assert names == {"CohereFailure", "TeiFailure"}


def test_other_methods_are_refused_in_its_shape(served: Served) -> None:
    for method, path, allow in (("DELETE", "/words", "POST"), ("POST", "/heartbeat", "GET, HEAD")):
        refused = served.client.request(method, path, headers=KEY)
        assert (refused.status_code, refused.headers["allow"]) == (405, allow)
    assert set(served.client.get("/words", headers=KEY).json()) == {"message"}


def test_it_needs_a_key_unless_it_says_otherwise(served: Served) -> None:
    refused = served.client.post("/words", json={"text": "a"})
    assert (refused.status_code, set(refused.json())) == (401, {"message"})
    assert served.client.get("/heartbeat").status_code == 200
    assert served.client.get("/secret").status_code == 200


def test_ports_and_hosts_follow(serve: Serve) -> None:
    served = serve(*FLAGS, "--admin-port", "9001", "--allowed-hosts", "testserver", routes=MORE)
    found = {
        (path, port): served.client.head(f"http://testserver:{port}{path}", headers=KEY).status_code
        for path in ("/words", "/heartbeat", "/secret")
        for port in (80, 9001)
    }
    assert found == {
        ("/words", 80): 405,
        ("/words", 9001): 404,
        ("/heartbeat", 80): 200,
        ("/heartbeat", 9001): 200,
        ("/secret", 80): 404,
        ("/secret", 9001): 200,
    }
    assert post(served, host="10.0.0.7").status_code == 400
    assert served.client.get("/heartbeat", headers={"host": "10.0.0.7"}).status_code == 200


def test_it_is_refused_before_its_body_is_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.engine, "early_refusal", lambda *_: Overloaded("full", retry_after=3))
    refused = served.client.post("/words", content=b"not even read", headers=KEY)
    assert (refused.status_code, refused.json()) == (429, {"message": "full"})
    assert served.client.get("/heartbeat").status_code == 200


def test_pages_may_read_the_headers_that_it_declares(serve: Serve) -> None:
    served = serve(*FLAGS, "--cors-origins", ORIGIN, routes=MORE)
    assert "X-Longest" in post(served, origin=ORIGIN).headers["access-control-expose-headers"].split(", ")


def test_the_document_describes_it(served: Served) -> None:
    paths = served.client.get("/openapi.json").json()["paths"]
    responses = paths["/words"]["post"]["responses"]
    assert {"200", "401", "406", "422", "429", "503", "504"} <= set(responses)
    assert responses["429"]["content"]["application/json"]["examples"]["overloaded"]["value"].keys() == {"message"}
    assert "/heartbeat" not in paths  # declared without a summary


def test_its_series_are_there_before_the_first_request(served: Served) -> None:
    name = "polyhead_request_duration_seconds_count"
    for method, path, status in (("POST", "/words", "504"), ("GET", "/heartbeat", "200")):
        assert served.metric(name, route=path, method=method, status=status) == 0


def test_it_is_traced_unless_it_is_a_probe(serve: Serve) -> None:
    exporter = InMemorySpanExporter()
    served = serve(tracing=OpenTelemetryTracing(SimpleSpanProcessor(exporter), share=1.0), routes=MORE)
    post(served)
    served.client.get("/heartbeat")
    assert [span.name for span in exporter.get_finished_spans()] == ["POST /words"]


PATHS = ("/info", "/heads", "/v1/models", "/models")


def test_what_is_said_of_the_model_is_that_of_the_files_that_were_loaded(tmp_path: Path) -> None:
    directory = tmp_path / "artifact"
    directory.mkdir()
    (directory / HEADS).write_text('{"schema": 1, "heads": []}')
    write_fake_artifact(directory)
    served = Served(read_settings(["--model", str(directory), "--workers", "1"]), FakeBackend())
    served.start()
    try:
        before = [served.client.get(path) for path in PATHS]
        assert [answer.status_code for answer in before] == [200] * len(PATHS)
        shutil.rmtree(directory)
        assert [served.client.get(path).content for path in PATHS] == [answer.content for answer in before]
    finally:
        served.client.close()
        served.engine.close(5)
