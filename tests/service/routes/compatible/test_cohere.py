"""Cohere's embed: every form of a vector, equal to sentence-transformers' own quantisation."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.service.conftest import Serve
from tests.service.fake_engine import HIDDEN_SIZE
from tests.service.routes.conftest import Client

TEXTS = ["The cat sat on the mat.", "It rained all day.", "A mat."]


def embed(client: Any, **body: Any) -> Any:
    response = client.post("/v2/embed", json={"texts": TEXTS, "model": "x", "input_type": "search_document", **body})
    assert response.status_code == 200, response.text
    return response.json()


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


def test_every_form_counts_in_the_size_of_an_answer(serve: Serve) -> None:
    most = 2 * 4 * HIDDEN_SIZE * len(TEXTS)  # two forms, as float32
    served = serve(f"--max-embedding-bytes={most}")
    budget = served.services.model.answers
    budget.held, budget.limit = (
        1,
        1 + 21 * HIDDEN_SIZE * len(TEXTS),
    )  # beside another one, an answer of one form of floats
    body = {"texts": TEXTS, "model": "x"}
    for forms, status in ((["float"], 200), (["float", "base64"], 429), (["float", "base64", "ubinary"], 413)):
        response = served.client.post("/v2/embed", json=body | {"embedding_types": forms})
        assert response.status_code == status, response.text
    assert "embedding_types: the answer would hold" in response.text
    assert budget.held == 1
