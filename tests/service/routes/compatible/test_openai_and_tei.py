"""Routes of OpenAI, Infinity, TEI and others without a client: shapes, refusals, and the vectors of `POST /encode`."""

import base64
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.artifact import Defaults
from service.routes.compatible.openai import EmbeddingsAnswer, InfinityModels, ModelList
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import CLS, MODEL_NAME, SEP, write_fake_artifact
from tests.service.routes.conftest import Client
from tests.task_artifacts import TaskArtifact

PATHS = ("/v1/embeddings", "/embeddings")
NULLS = dict.fromkeys(("model", "encoding_format", "dimensions", "user", "prompt"))
FIELDS = {"model": "any-name", "user": "somebody"}


@pytest.mark.parametrize(
    ("path", "inputs", "fields"),
    [
        *((path, inputs, FIELDS) for path in PATHS for inputs in ("the cat", ["the cat", "dog"], [CLS, 5, SEP])),
        ("/v1/embeddings", [[CLS, 5, SEP], [CLS, 4, 4, SEP]], FIELDS),
        *((path, "cat", NULLS) for path in PATHS),
        ("/v1/embeddings", "cat", {"drop_params": True}),  # RAGFlow
        ("/embeddings", "cat", {"dimensions": 0}),
    ],
)
def test_answer_is_openais_with_the_vectors_of_encode(served: Served, path: str, inputs: Any, fields: Any) -> None:
    response = served.client.post(path, json={"input": inputs, **fields})
    answer = response.json()
    EmbeddingsAnswer.model_validate_json(response.content, strict=True)
    expected = served.encode({"inputs": inputs}).json()["embeddings"]
    assert [entry["embedding"] for entry in answer["data"]] == expected
    assert [entry["index"] for entry in answer["data"]] == list(range(len(answer["data"])))
    assert answer["model"] == MODEL_NAME
    assert answer["id"] == response.headers["x-request-id"]  # Mistral's client refuses an answer without one
    assert abs(answer["created"] - time.time()) < 60  # Infinity's client and vLLM's read it
    tokens = served.encode({"inputs": inputs}).json()["usage"]["tokens"]
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert "x-truncated-inputs" not in response.headers


@pytest.mark.parametrize(
    ("path", "fields", "cut"),
    [
        ("/v1/embeddings", {"truncate": "END"}, True),  # NVIDIA
        ("/v1/embeddings", {"truncate": "START"}, "start"),
        ("/v1/embeddings", {"truncate": None}, True),
        ("/v1/embeddings", {"truncate": "NONE"}, False),
        ("/v1/embeddings", {"truncation": True}, True),  # Voyage
        ("/v1/embeddings", {"truncation": False}, False),
        *((path, {"truncation_direction": "Left"}, "start") for path in ("/embed", "/embed_all", "/")),
    ],
)
def test_what_is_cut_is_said_in_each_api_s_words(
    served: Served, path: str, fields: dict[str, Any], cut: bool | str
) -> None:
    long, own = "dog " * 20 + "cat " * 20, {"output": "tokens", "normalize": False} if path == "/embed_all" else {}
    if path == "/v1/embeddings":
        body = {"input": long, "input_type": "classification", "late_chunking": False}
    else:
        body = {"inputs": long}
    found = served.client.post(path, json={**body, **fields})
    expected = served.encode({"inputs": long, "truncate": cut, **own})
    assert found.status_code == expected.status_code == (200 if cut else 413)
    if cut:
        answer = found.json()
        vectors = [entry["embedding"] for entry in answer["data"]] if isinstance(answer, dict) else answer
        assert vectors == expected.json()["embeddings"]


@pytest.mark.parametrize("own", [{}, {"dimensions": 4}, {"dimensions": 8, "encoding_format": "binary"}])
def test_voyages_client_is_answered(served: Served, own: dict[str, Any]) -> None:
    form = own.get("encoding_format")
    sent = {"truncation": True, "output_dtype": form, "output_dimension": own.get("dimensions")}  # null is written
    body = {"input": ["cat"], "model": "voyage-3", "input_type": "document", "encoding_format": "base64", **sent}
    (found,) = served.client.post("/v1/embeddings", json=body).json()["data"]
    vector = found["embedding"] if form else np.frombuffer(base64.b64decode(found["embedding"]), "<f4")
    np.testing.assert_array_equal(vector, np.float32(served.encode({"inputs": "cat", **own}).json()["embeddings"][0]))


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("form", ["float", "base64", "binary"])
def test_jinas_clients_are_answered(served: Served, form: str, normalized: bool) -> None:
    body = {"input": ["cat"], "late_chunking": False, "embedding_type": form, "normalized": normalized}
    (found,) = served.client.post("/v1/embeddings", json={**body, "dimensions": 8}).json()["data"]
    own = {"inputs": "cat", "dimensions": 8, "encoding_format": form, "normalize": normalized}
    assert [found["embedding"]] == served.encode(own).json()["embeddings"]


def test_unknown_fields_are_refused_as_openai_does_and_ignored_as_infinity_does(served: Served) -> None:
    body = {"input": "cat", "input_type": "query", "modality": "text"}
    assert served.client.post("/v1/embeddings", json=body).status_code == 422
    assert served.client.post("/embeddings", json=body).status_code == 200
    assert served.client.post("/embeddings", json={"input": "cat", "modality": "image"}).status_code == 422


def test_models_lists_the_one_that_is_served(served: Served) -> None:
    response = served.client.get("/v1/models")
    ModelList.model_validate_json(response.content, strict=True)
    (model,) = response.json()["data"]
    assert model["id"] == MODEL_NAME
    assert served.client.get(f"/v1/models/{MODEL_NAME}").json() == model
    missing = served.client.get("/v1/models/text-embedding-3-small")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    assert MODEL_NAME in missing.json()["error"]["message"]
    response = served.client.get("/models")
    InfinityModels.model_validate_json(response.content, strict=True)
    assert response.json()["data"][0]["stats"] == {"queue_fraction": 0, "queue_absolute": 0}


def test_cohere_s_inputs_get_a_named_prompt_of_any_length(serve: Serve, tmp_path: Path) -> None:
    prompts = {"query": "the cat " * 200}
    defaults = Defaults(pooling="mean", normalize=True, prompts=prompts, default_prompt_name=None)
    served = serve("--model", str(write_fake_artifact(tmp_path / "prompts", defaults)))
    response = served.client.post("/v2/embed", json={"texts": ["a dog"], "input_type": "search_query"})
    assert response.status_code == 200
    expected = served.encode({"inputs": ["a dog"], "prompt_name": "query"}).json()["embeddings"]
    assert response.json()["embeddings"]["float"] == expected
    refused = served.client.post("/v1/embeddings", json={"input": [CLS, 5, SEP], "task": "retrieval.query"})
    assert "prompt_name: token ids and pairs are used as given" in refused.text


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
    served = serve()
    assert served.client.post("/embed", content=b"{").json()["error_type"] == "Validation"
    served.backend.fails = True
    response = served.client.post("/embed", json={"inputs": "slow"})
    assert response.status_code == 500
    assert response.json()["error_type"] == "Backend"
    assert served.client.get("/health").status_code == 200
    served.readiness.drain()
    response = served.client.get("/health")
    assert (response.status_code, response.json()["error_type"]) == (503, "Unhealthy")


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
