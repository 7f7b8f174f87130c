"""Vectors in fewer bits: sentence-transformers' own quantisation; and Cohere's route, which answers several forms."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load

from model.artifact import Artifact, read_manifest
from service.answers.vectors import quantize
from service.http.response import SAFETENSORS
from tests.service.conftest import Serve
from tests.service.fake_engine import HIDDEN_SIZE
from tests.service.routes.conftest import Client, post
from tests.task_artifacts import TaskArtifact

TEXTS = ["The cat sat on the mat.", "It rained all day.", "A mat."]
FORMATS = ["int8", "uint8", "binary", "ubinary"]


def quantized(artifact: Path, vectors: Any, form: str) -> Any:
    from sentence_transformers.util import quantize_embeddings  # noqa: PLC0415 - seconds to import

    ranges = Artifact.open(artifact).manifest.vector_ranges
    assert ranges is not None
    limits = np.array([ranges.minimum, ranges.maximum], dtype=np.float32)
    return quantize_embeddings(np.array(vectors, np.float32), precision=form, ranges=limits)


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
        body = {"inputs": TEXTS, "encoding_format": form}
        tensors = load(asked.post("/encode", json=body, headers={"Accept": SAFETENSORS}).content)
        assert tensors["embeddings"].dtype == expected.dtype
        np.testing.assert_array_equal(tensors["embeddings"], expected, err_msg=form)


def test_signs_of_the_first_dimensions_and_of_token_vectors(client: Client, default_artifact: Path) -> None:
    asked = client(default_artifact)
    short = post(asked, "/encode", inputs=TEXTS, dimensions=64, normalize=False)["embeddings"]
    found = post(asked, "/encode", inputs=TEXTS, dimensions=64, normalize=False, encoding_format="ubinary")[
        "embeddings"
    ]
    np.testing.assert_array_equal(found, quantized(default_artifact, short, "ubinary"))
    tokens = post(asked, "/encode", inputs=TEXTS, output="tokens")["embeddings"]
    found = post(asked, "/encode", inputs=TEXTS, output="tokens", encoding_format="binary")["embeddings"]
    for rows, expected in zip(found, tokens, strict=True):
        np.testing.assert_array_equal(rows, quantized(default_artifact, expected, "binary"))


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
    assert np.shape(short["ubinary"]) == (3, 8)
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
