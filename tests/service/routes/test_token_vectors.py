"""Vectors of tokens as an index wants them: in a role, with their tokens, in few bits, pooled; and Jina's route."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from tests.service.routes.conftest import Client, post
from tests.task_artifacts import TaskArtifact

TEXTS = ["a", "The cat sat on the mat.", "a dog. ate. it...", "the newest mats " * 12]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def original(expanding_encoder: TaskArtifact) -> Any:
    from sentence_transformers import MultiVectorEncoder  # noqa: PLC0415 - seconds to import

    return MultiVectorEncoder(str(expanding_encoder.folder))


def tensors(client: Any, **body: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    response = client.post("/encode", json=body, headers={"accept": "application/vnd.safetensors"})
    assert response.status_code == 200, response.text
    header = json.loads(response.content[8 : 8 + int.from_bytes(response.content[:8], "little")])
    return load(response.content), json.loads(header["__metadata__"]["answer"])


def test_a_document_has_the_vectors_that_count_with_their_tokens(
    client: Client, expanding_encoder: TaskArtifact, original: Any
) -> None:
    asked = client(expanding_encoder.artifact)
    for role, expected in (("query", original.encode_query(TEXTS)), ("document", original.encode_document(TEXTS))):
        answer = post(asked, "/encode", inputs=TEXTS, role=role, return_tokens=True)
        for text, found, tokens, wanted in zip(TEXTS, answer["embeddings"], answer["tokens"], expected, strict=True):
            np.testing.assert_allclose(found, wanted, atol=TOLERANCE)
            assert len(tokens["input_ids"]) == len(tokens["offsets"]) == len(found)
            named = original.tokenizer.convert_ids_to_tokens(tokens["input_ids"])
            for name, (start, end) in zip(named, tokens["offsets"], strict=True):
                assert text[start:end].lower() in (name.removeprefix("##"), "")
            assert "." not in named or role == "query"
            assert "[MASK]" not in named or role == "query"


def test_safetensors_hold_few_bits_and_tokens(client: Client, expanding_encoder: TaskArtifact) -> None:
    from sentence_transformers.util import quantize_embeddings  # noqa: PLC0415 - seconds to import

    asked, body = client(expanding_encoder.artifact), {"inputs": TEXTS, "role": "document"}
    for role, longest in (("query", 12), ("document", 24)):
        refused = asked.post("/encode", json={"inputs": "cat " * 40, "role": role, "truncate": False})
        assert f"tokens, the model takes {longest}; shorten" in refused.text
    whole, _ = tensors(asked, **body, return_tokens=True)
    listed = post(asked, "/encode", **body, return_tokens=True)["tokens"]
    ranges = asked.get("/info").json()["manifest"]["vector_ranges"]
    limits = np.array([ranges["minimum"], ranges["maximum"]], dtype=np.float32)
    for form in ("float16", "int8", "uint8", "binary", "ubinary"):
        packed, answer = tensors(asked, **body, encoding_format=form)
        assert "tokens" not in answer
        for index in range(len(TEXTS)):
            vectors, found = whole[f"embeddings.{index}"], packed[f"embeddings.{index}"]
            if form == "float16":
                np.testing.assert_array_equal(found, vectors.astype(np.float16))
            else:
                expected: Any = quantize_embeddings(vectors, precision=form, ranges=limits)
                np.testing.assert_array_equal(found, expected, err_msg=form)
    for index, entry in enumerate(listed):
        for name in ("input_ids", "offsets"):
            np.testing.assert_array_equal(whole[f"tokens.{index}.{name}"], entry[name])


def test_pooled_documents_are_the_original_s(client: Client, expanding_encoder: TaskArtifact, original: Any) -> None:
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling  # noqa: PLC0415 - seconds

    asked = client(expanding_encoder.artifact)
    answer = post(asked, "/encode", inputs=TEXTS, role="document", pool_factor=2, return_tokens=True)
    expected = original.encode_document(TEXTS, token_pooling=HierarchicalTokenPooling(2))
    for found, tokens, wanted in zip(answer["embeddings"], answer["tokens"], expected, strict=True):
        gaps = np.abs(np.array(found)[:, np.newaxis] - np.asarray(wanted)[np.newaxis]).max(axis=2)
        assert gaps.shape[0] == gaps.shape[1]
        assert gaps.min(axis=1).max() < TOLERANCE
        assert len(tokens["rows"]) == len(tokens["input_ids"])
        assert max(tokens["rows"]) == len(found) - 1


def test_jina_s_clients_get_a_vector_a_token(client: Client, expanding_encoder: TaskArtifact, original: Any) -> None:
    asked = client(expanding_encoder.artifact)
    for kind, expected in (("query", original.encode_query(TEXTS)), ("document", original.encode_document(TEXTS))):
        body = {"input": [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]], "input_type": kind, "model": "jina-colbert-v2"}
        answer = post(asked, "/v1/multi-vector", **body, embedding_type="float")
        for entry, wanted in zip(answer["data"], expected, strict=True):
            np.testing.assert_allclose(entry["embeddings"], wanted, atol=TOLERANCE)
    assert [entry["object"] for entry in answer["data"]] == ["embeddings"] * len(TEXTS)
    coded = post(asked, "/v1/multi-vector", **body, embedding_type="base64")["data"][0]["embeddings"]
    assert np.frombuffer(base64.b64decode(coded), "<f4").size == np.asarray(expected[0]).size


def test_a_document_of_too_many_tokens_is_not_pooled(
    client: Client, expanding_encoder: TaskArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.requests.sizes.POOLED_TOKENS", 9)
    response = client(expanding_encoder.artifact).post("/encode", json={"inputs": TEXTS, "pool_factor": 2})
    assert response.status_code == 413
    assert "pool_factor: a document has" in response.json()["error"]["message"]
