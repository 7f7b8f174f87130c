"""text-embeddings-inference's routes without a client: bare arrays, its shape of errors."""

from typing import Any

import pytest

from tests.service.conftest import Serve, Served
from tests.service.fake_engine import CLS, SEP
from tests.service.routes.conftest import Client
from tests.task_artifacts import TaskArtifact


@pytest.mark.parametrize("inputs", ["the cat", ["the cat", "dog"], [CLS, 5, SEP], [[CLS, 5, SEP]]])
@pytest.mark.parametrize("options", [{}, {"normalize": False}, {"dimensions": 3}])
def test_embed_answers_the_vectors_of_encode(served: Served, inputs: Any, options: dict[str, Any]) -> None:
    body = {"inputs": inputs, **options}
    response = served.client.post("/embed", json={**body, "truncate": None, "truncation_direction": "Right", "new": 1})
    assert response.json() == served.encode(body).json()["embeddings"]
    assert served.client.post("/", json=body).json() == response.json()


@pytest.mark.parametrize(
    ("path", "field"), [("/embed", "inputs"), ("/", "inputs"), ("/embed_all", "inputs"), ("/v1/embeddings", "input")]
)
def test_truncation_is_counted_in_a_header_or_refused(served: Served, path: str, field: str) -> None:
    body = {field: ["cat " * 40, "cat", "dog " * 40]}
    assert served.client.post(path, json=body).headers["x-truncated-inputs"] == "2"
    refused = served.client.post(path, json={**body, "truncate": False})
    message = f"{field}[0]: 42 tokens, the model takes 16; shorten the text or allow truncate"
    assert (refused.status_code, message in refused.text) == (413, True)
    assert refused.json().get("error_type", "Validation") == "Validation"


def test_failures_outside_the_route_have_teis_shape_too(serve: Serve) -> None:
    starting = serve(ready=False)
    for method, path in (("POST", "/embed"), ("POST", "/"), ("GET", "/health")):
        response = starting.client.request(method, path, json={"inputs": "cat"})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error_type"] == "Unhealthy"
    served = serve()
    assert served.client.post("/embed", content=b"{").json()["error_type"] == "Validation"
    served.backend.fails = True
    response = served.client.post("/embed", json={"inputs": "slow"})
    assert response.status_code == 500
    assert response.json()["error_type"] == "Backend"
    assert served.client.get("/health").status_code == 200
    served.readiness.drain()
    assert served.client.get("/health").status_code == 503


def test_the_page_at_the_same_path_stays(served: Served) -> None:
    assert served.client.get("/").headers["content-type"].startswith("text/html")
    refused = served.client.put("/")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")


SENTENCES = {"source_sentence": "the cat", "sentences": ["a dog", "the cat sat"]}


@pytest.mark.parametrize(
    ("model", "path", "body"),
    [
        ("embedder", "/embed", {"inputs": ["the cat", "a dog"]}),
        ("embedder", "/similarity", {"inputs": SENTENCES, "parameters": {}}),
        ("embedder", "/rerank", {"query": "the cat", "texts": ["a dog", "the cat sat"]}),
        ("classifier", "/predict", {"inputs": "the cat"}),
        ("classifier", "/predict", {"inputs": [["the cat", "a dog"]], "raw_scores": True}),
        ("reranker", "/rerank", {"query": "the cat", "texts": ["a dog", "the cat sat"], "return_text": True}),
        ("reranker", "/predict", {"inputs": ["the cat", "a dog"]}),
        ("sparse_encoder", "/embed_sparse", {"inputs": "the cat"}),
    ],
)
def test_a_body_is_answered_as_on_its_own_route(
    client: Client, request: pytest.FixtureRequest, model: str, path: str, body: dict[str, Any]
) -> None:
    served: TaskArtifact = request.getfixturevalue(model)
    asked = client(served.artifact)
    found, expected = (asked.post(at, json=body) for at in ("/", path))
    assert found.status_code == 200, found.text
    assert found.json() == expected.json()


@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/"])
def test_the_beginning_is_cut_where_asked_for(served: Served, path: str) -> None:
    text, options = "dog " + "cat " * 40, {"output": "tokens", "normalize": False} if path == "/embed_all" else {}
    found = served.client.post(path, json={"inputs": text, "truncation_direction": "Left"}).json()
    expected = served.encode({"inputs": text, "truncate": "start", **options}).json()["embeddings"]
    assert found == expected != served.encode({"inputs": text, **options}).json()["embeddings"]
