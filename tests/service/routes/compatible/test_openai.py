"""OpenAI's and Infinity's routes without a client: shapes, refusals, and the same vectors as `POST /encode`."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.artifact import Defaults
from service.routes.compatible.openai import EmbeddingsAnswer, InfinityModels, ModelList
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import CLS, MODEL_NAME, SEP, write_fake_artifact

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
    tokens = served.encode({"inputs": inputs}).json()["usage"]["tokens"]
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert "x-truncated-inputs" not in response.headers


@pytest.mark.parametrize("ids", [[791, 8415], [5], [CLS, 5], [5, SEP], [[CLS, 5, SEP], [4, 5]]])
def test_token_ids_of_another_tokenizer_are_refused(served: Served, ids: Any) -> None:
    response = served.client.post("/v1/embeddings", json={"input": ids})
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["param"] == ("input.1" if ids[0] == [CLS, 5, SEP] else "input.0")
    assert f"its own begin with {CLS} and end with {SEP}" in error["message"]
    assert "check_embedding_ctx_length=False" in error["message"]


@pytest.mark.parametrize(
    ("fields", "cut"),
    [
        ({"truncate": "END"}, True),
        ({"truncate": "START"}, "start"),
        ({"truncate": None}, True),
        ({"truncation": True}, True),
        ({"truncate": "NONE"}, False),
        ({"truncation": False}, False),
    ],
)
def test_nvidia_and_voyage_say_what_is_cut(served: Served, fields: dict[str, Any], cut: bool | str) -> None:
    long = "dog " * 20 + "cat " * 20
    body = {"input": long, "input_type": "classification", "late_chunking": False, **fields}
    response, own = served.client.post("/v1/embeddings", json=body), served.encode({"inputs": long, "truncate": cut})
    assert response.status_code == own.status_code == (200 if cut else 413)
    if cut:
        assert [entry["embedding"] for entry in response.json()["data"]] == own.json()["embeddings"]


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


def test_models_are_not_listed_before_one_is_loaded(serve: Serve) -> None:
    client = serve(ready=False).client
    for path in ("/v1/models", f"/v1/models/{MODEL_NAME}", "/models"):
        response = client.get(path)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1"), path


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
