"""Cohere's embed: every form of a vector, equal to sentence-transformers' own quantisation."""

from functools import partial
from pathlib import Path

import numpy as np

from tests.service.conftest import Serve
from tests.service.fake_engine import HIDDEN_SIZE
from tests.service.routes.conftest import Client, post

TEXTS = ["The cat sat on the mat.", "It rained all day.", "A mat."]


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
