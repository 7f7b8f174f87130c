"""Vectors in fewer bits and vectors of tokens, as an index wants them: as sentence-transformers makes them."""

import base64
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.artifact import read_manifest
from service.answers.vectors import quantize
from tests.service.conftest import Serve, Served
from tests.service.fake_engine import HIDDEN_SIZE
from tests.service.routes.conftest import Client, post, post_tensors, quantized
from tests.task_artifacts import TaskArtifact

TEXTS = ["a", "The cat sat on the mat.", "a dog. ate. it...", "the newest mats " * 12]
FORMATS = ["int8", "uint8", "binary", "ubinary"]


def test_every_format_is_sentence_transformers_own(client: Client, default_artifact: Path) -> None:
    asked = client(default_artifact)
    vectors = post(asked, "/encode", inputs=TEXTS)["embeddings"]
    for form in FORMATS:
        expected = quantized(default_artifact, vectors, form)
        found = post(asked, "/encode", inputs=TEXTS, encoding_format=form)["embeddings"]
        np.testing.assert_array_equal(found, expected, err_msg=form)
        openai = post(asked, "/v1/embeddings", input=TEXTS, encoding_format=form)["data"]
        np.testing.assert_array_equal([entry["embedding"] for entry in openai], expected, err_msg=form)
        cohere = post(asked, "/v2/embed", texts=TEXTS, input_type="search_document", embedding_types=["float", form])
        assert cohere["embeddings"]["float"] == vectors
        np.testing.assert_array_equal(cohere["embeddings"][form], expected, err_msg=form)
        tensors, _ = post_tensors(asked, inputs=TEXTS, encoding_format=form)
        np.testing.assert_array_equal(tensors["embeddings"], expected, err_msg=form, strict=True)


def test_signs_of_the_first_dimensions_and_of_token_vectors(client: Client, default_artifact: Path) -> None:
    asked = client(default_artifact)
    for form, options in (("ubinary", {"dimensions": 64, "normalize": False}), ("binary", {"output": "tokens"})):
        plain = post(asked, "/encode", inputs=TEXTS, **options)["embeddings"]
        found = post(asked, "/encode", inputs=TEXTS, **options, encoding_format=form)["embeddings"]
        for vectors, expected in zip(found, plain, strict=True):
            np.testing.assert_array_equal(vectors, quantized(default_artifact, expected, form))


def test_a_zero_is_no_positive_sign(default_artifact: Path) -> None:
    vectors = np.array([[0, 1, -1, 0, 2, 0, 0, 3]], dtype=np.float32)
    assert quantize(vectors, "ubinary", read_manifest(default_artifact)).tolist() == [[0b01001001]]


def test_signs_of_a_vector_for_each_token(client: Client, multi_vector_encoder: TaskArtifact) -> None:
    found = post(client(multi_vector_encoder.artifact), "/encode", inputs="a cat", encoding_format="ubinary")
    assert np.shape(found["embeddings"][0]) == (found["items"][0]["tokens"], 2)


def test_forms_sizes_and_cuts_and_null_for_their_defaults(client: Client, default_artifact: Path) -> None:
    asked = client(default_artifact)
    embed = partial(post, asked, "/v2/embed", model="x", input_type="search_document")
    usual = embed(texts=TEXTS)["embeddings"]
    assert list(usual) == ["float"]
    assert embed(texts=TEXTS, truncate=None, embedding_types=None, output_dimension=None)["embeddings"] == usual
    short = embed(texts=TEXTS, output_dimension=64, embedding_types=["ubinary"])["embeddings"]
    assert np.shape(short["ubinary"]) == (len(TEXTS), 8)
    start = embed(texts=["dog " * 400 + "cat " * 300], truncate="START")["embeddings"]["float"][0]
    end = embed(texts=["cat " * 254], truncate="NONE")["embeddings"]["float"][0]
    np.testing.assert_allclose(start, end, atol=1e-6)
    half = embed(texts=["dog " * 4 + "cat " * 3], truncate="START", max_tokens=3)["embeddings"]["float"][0]
    np.testing.assert_allclose(half, embed(texts=["cat " * 3])["embeddings"]["float"][0], atol=1e-6)
    refused = asked.post("/v2/embed", json={"texts": ["a cat sat"], "truncate": "NONE", "max_tokens": 2})
    assert (refused.status_code, "5 tokens, the model takes 4" in refused.json()["message"]) == (413, True)
    rerank = partial(post, asked, "/v2/rerank", query="cat", documents=TEXTS, model="x")
    assert rerank(max_tokens_per_doc=None, top_n=None)["results"] == rerank()["results"]


def test_every_form_counts_in_the_size_of_an_answer(serve: Serve) -> None:
    most = 2 * 4 * HIDDEN_SIZE * len(TEXTS)  # two forms, as float32
    served = serve(f"--max-embedding-bytes={most}")
    budget = served.services.model.answers
    budget.held = 1  # beside another one, an answer of one form of floats
    budget.limit = 1 + 21 * HIDDEN_SIZE * len(TEXTS)
    body = {"texts": TEXTS, "model": "x"}
    for forms, status in ((["float"], 200), (["float", "base64"], 429), (["float", "base64", "ubinary"], 413)):
        response = served.client.post("/v2/embed", json=body | {"embedding_types": forms})
        assert response.status_code == status, response.text
    assert "embedding_types: the answer would hold" in response.text
    assert budget.held == 1


TOLERANCE = 1e-5


@cache
def original(folder: Path) -> Any:
    from sentence_transformers import MultiVectorEncoder  # noqa: PLC0415 - seconds to import

    return MultiVectorEncoder(str(folder))


@pytest.mark.parametrize("model", ["multi_vector_encoder", "expanding_encoder"])
@pytest.mark.parametrize("role", ["query", "document"])
def test_a_role_s_vectors_have_their_tokens_and_are_jina_s_too(
    client: Client, request: pytest.FixtureRequest, model: str, role: str
) -> None:
    made: TaskArtifact = request.getfixturevalue(model)
    asked, encoder = client(made.artifact), original(made.folder)
    expected = getattr(encoder, f"encode_{role}")(TEXTS)
    answer = post(asked, "/encode", inputs=TEXTS, role=role, return_tokens=True)
    for text, found, tokens, wanted in zip(TEXTS, answer["embeddings"], answer["tokens"], expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=TOLERANCE)
        assert len(tokens["input_ids"]) == len(tokens["offsets"]) == len(found)
        named = encoder.tokenizer.convert_ids_to_tokens(tokens["input_ids"])
        for name, (start, end) in zip(named, tokens["offsets"], strict=True):
            assert text[start:end].lower() in (name.removeprefix("##"), "")
        assert role == "query" or not {".", "[MASK]"} & {*named}
    body = {"input": [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]], "input_type": role, "model": "jina-colbert-v2"}
    jina = post(asked, "/v1/multi-vector", **body, embedding_type="float")["data"]
    assert [(one["object"], one["embeddings"]) for one in jina] == [("embeddings", one) for one in answer["embeddings"]]
    coded = post(asked, "/v1/multi-vector", **body, embedding_type="base64")["data"][0]["embeddings"]
    assert np.frombuffer(base64.b64decode(coded), "<f4").size == np.asarray(expected[0]).size


def test_safetensors_hold_few_bits_and_tokens(client: Client, expanding_encoder: TaskArtifact) -> None:
    asked, body = client(expanding_encoder.artifact), {"inputs": TEXTS, "role": "document"}
    for role, longest in (("query", 12), ("document", 24)):
        refused = asked.post("/encode", json={"inputs": "cat " * 40, "role": role, "truncate": False})
        assert f"tokens, the model takes {longest}; shorten" in refused.text
    whole, _ = post_tensors(asked, **body, return_tokens=True)
    listed = post(asked, "/encode", **body, return_tokens=True)["tokens"]
    for form in ("float16", "int8", "uint8", "binary", "ubinary"):
        packed, answer = post_tensors(asked, **body, encoding_format=form)
        assert "tokens" not in answer
        for index in range(len(TEXTS)):
            vectors, found = whole[f"embeddings.{index}"], packed[f"embeddings.{index}"]
            if form == "float16":
                np.testing.assert_array_equal(found, vectors.astype(np.float16))
            else:
                np.testing.assert_array_equal(found, quantized(expanding_encoder.artifact, vectors, form), err_msg=form)
    for index, entry in enumerate(listed):
        for name in ("input_ids", "offsets"):
            np.testing.assert_array_equal(whole[f"tokens.{index}.{name}"], entry[name])


def test_pooled_documents_are_the_original_s(client: Client, expanding_encoder: TaskArtifact) -> None:
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling  # noqa: PLC0415 - seconds

    asked = client(expanding_encoder.artifact)
    answer = post(asked, "/encode", inputs=TEXTS, role="document", pool_factor=2, return_tokens=True)
    encode = original(expanding_encoder.folder).encode_document
    expected = encode(TEXTS, token_pooling=HierarchicalTokenPooling(2))
    for found, tokens, wanted in zip(answer["embeddings"], answer["tokens"], expected, strict=True):
        gaps = np.abs(np.array(found)[:, np.newaxis] - np.asarray(wanted)[np.newaxis]).max(axis=2)
        assert gaps.shape[0] == gaps.shape[1]
        assert gaps.min(axis=1).max() < TOLERANCE
        assert len(tokens["rows"]) == len(tokens["input_ids"])
        assert max(tokens["rows"]) == len(found) - 1


def test_a_document_of_too_many_tokens_is_not_pooled(
    client: Client, expanding_encoder: TaskArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.requests.sizes.POOLED_TOKENS", 9)
    response = client(expanding_encoder.artifact).post("/encode", json={"inputs": TEXTS, "pool_factor": 2})
    assert response.status_code == 413
    assert "pool_factor: a document has" in response.json()["error"]["message"]


OF_OPENAI = "'float', 'base64', 'int8', 'uint8', 'binary' or 'ubinary'"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/encode", {"attention": {"heads": [-1]}}, "attention.heads.0: Input should be greater than or equal to 0"),
        ("/encode", {"attention": {"layers": [0.5]}}, "attention.layers.0: Input should be a valid integer"),
        ("/v1/embeddings", {"input": "cat", "encoding_format": "x"}, f"encoding_format: Input should be {OF_OPENAI}"),
    ],
)
def test_a_mistake_in_one_of_several_forms_is_described_once(
    served: Served, path: str, body: dict[str, Any], message: str
) -> None:
    response = served.client.post(path, json=body)
    assert response.json()["error"]["message"] == message
