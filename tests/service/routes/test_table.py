"""One declaration adds a route, and everything that depends on what a route is follows."""

import shutil
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from model.artifact import HEADS
from service.app import ROUTES
from service.http.route import Route, answer_document
from service.wire import COHERE, TEI, AnswerModel, RequestModel
from tests.service.conftest import Serve
from tests.service.fake_engine import write_fake_artifact

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


def test_a_body_of_another_api_fails_in_its_shape(serve: Serve) -> None:
    client = serve(routes=MORE).client
    for body, status in ((b'{"texts": ["a"]}', 422), (b'{"texts": ["a"', 400)):
        refused = client.post("/words", content=body, headers={"content-type": "application/json"})
        assert (refused.status_code, set(refused.json())) == (status, {"error", "error_type"})
    schema = client.get("/openapi.json").json()["paths"]["/words"]["post"]["responses"]["422"]["content"]
    names = {shape["$ref"].rpartition("/")[2] for shape in schema["application/json"]["schema"]["anyOf"]}
    assert names == {"CohereFailure", "TeiFailure"}


def test_pages_may_read_the_headers_that_it_declares(serve: Serve) -> None:
    client = serve("--cors-origins", ORIGIN, routes=MORE).client
    answer = client.post("/words", json={"text": "a cat sat"}, headers={"origin": ORIGIN})
    assert (answer.text, answer.headers["x-longest"]) == ("3", "3")
    assert "X-Longest" in answer.headers["access-control-expose-headers"].split(", ")


PATHS = ("/info", "/heads", "/v1/models", "/models")


def test_what_is_said_of_the_model_is_that_of_the_files_that_were_loaded(serve: Serve, tmp_path: Path) -> None:
    directory = tmp_path / "artifact"
    directory.mkdir()
    (directory / HEADS).write_text('{"schema": 1, "heads": []}')
    write_fake_artifact(directory)
    client = serve("--model", str(directory)).client
    before = [client.get(path) for path in PATHS]
    assert [answer.status_code for answer in before] == [200] * len(PATHS)
    shutil.rmtree(directory)
    assert [client.get(path).content for path in PATHS] == [answer.content for answer in before]
