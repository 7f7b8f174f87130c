"""Cohere's embed: every form of a vector, equal to sentence-transformers' own quantisation."""

from pathlib import Path
from typing import Any

import numpy as np

from model.artifact import Artifact
from tests.service.routes.conftest import Client

TEXTS = ["The cat sat on the mat.", "It rained all day.", "A mat."]


def embed(client: Any, **body: Any) -> Any:
    response = client.post("/v2/embed", json={"texts": TEXTS, "model": "x", "input_type": "search_document", **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_every_form_is_sentence_transformers_own(client: Client, default_artifact: Path) -> None:
    from sentence_transformers.util import quantize_embeddings  # noqa: PLC0415 - seconds to import

    forms = ["float", "int8", "uint8", "binary", "ubinary"]
    found = embed(client(default_artifact), embedding_types=forms)["embeddings"]
    ranges = Artifact.open(default_artifact).manifest.vector_ranges
    assert ranges is not None
    vectors = np.array(found["float"], dtype=np.float32)
    limits = np.array([ranges.minimum, ranges.maximum], dtype=np.float32)
    for form in forms[1:]:
        expected: Any = quantize_embeddings(vectors, precision=form, ranges=limits)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found[form], expected, err_msg=form)


def test_only_what_was_asked_for_is_answered(client: Client, default_artifact: Path) -> None:
    asked = client(default_artifact)
    assert list(embed(asked)["embeddings"]) == ["float"]
    short = embed(asked, output_dimension=64, embedding_types=["ubinary"])["embeddings"]
    assert np.shape(short["ubinary"]) == (3, 8)


def test_the_start_of_a_long_text_can_be_cut(client: Client, default_artifact: Path) -> None:
    asked = client(default_artifact)
    text = "dog " * 400 + "cat " * 300
    start = embed(asked, texts=[text], truncate="START")["embeddings"]["float"][0]
    end = embed(asked, texts=["cat " * 254], truncate="NONE")["embeddings"]["float"][0]
    np.testing.assert_allclose(start, end, atol=1e-6)


def test_a_field_that_is_null_has_its_default(client: Client, default_artifact: Path) -> None:
    asked = client(default_artifact)
    given = embed(asked, truncate=None, embedding_types=None, output_dimension=None)
    assert given["embeddings"] == embed(asked)["embeddings"]
    body = {"query": "cat", "documents": TEXTS, "model": "x"}
    rerank = asked.post("/v2/rerank", json=body | {"max_tokens_per_doc": None, "top_n": None})
    assert rerank.json()["results"] == asked.post("/v2/rerank", json=body).json()["results"]
