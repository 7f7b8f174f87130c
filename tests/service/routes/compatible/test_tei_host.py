"""`POST /`: each model does there what its own route of TEI does."""

from typing import Any

import pytest

from tests.service.routes.conftest import Client
from tests.task_artifacts import TaskArtifact

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


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"inputs": SENTENCES}, 404, "drawn is served here for classification"),
        ({"inputs": []}, 422, "inputs: expected a text, a pair"),
        ({"query": "", "texts": ["a"]}, 422, "query: String should have at least 1 character"),
        ({}, 422, "inputs: Field required"),
        ([1], 422, "Input should be a valid dictionary"),
    ],
)
def test_refusals_are_teis(client: Client, classifier: TaskArtifact, body: Any, status: int, message: str) -> None:
    response = client(classifier.artifact).post("/", json=body)
    assert response.status_code == status
    assert response.json()["error"].startswith(message)
    assert response.json()["error_type"] == "Validation"


def test_a_model_of_several_vectors_has_no_embedding(client: Client, multi_vector_encoder: TaskArtifact) -> None:
    response = client(multi_vector_encoder.artifact).post("/", json={"inputs": "the cat"})
    assert response.status_code == 404
    assert "multi-vector" in response.json()["error"]
