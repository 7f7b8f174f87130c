"""One declaration adds a route, and everything that depends on what a route is follows."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from model.artifact import HEADS
from service.app import ROUTES
from service.http.route import Route, answer_document
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
MORE = (*ROUTES, WORDS)


@pytest.fixture
def served(serve: Serve) -> Served:
    made: Served = serve(*FLAGS, routes=MORE)
    return made


def post(served: Served, text: Any = "a cat sat", **headers: str) -> Any:
    return served.client.post("/words", json={"text": text}, headers={**KEY, **headers})


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


def test_pages_may_read_the_headers_that_it_declares(serve: Serve) -> None:
    served = serve(*FLAGS, "--cors-origins", ORIGIN, routes=MORE)
    assert "X-Longest" in post(served, origin=ORIGIN).headers["access-control-expose-headers"].split(", ")


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
