"""Cohere's client, version 2 of its API."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cohere import ClientV2, V2RerankResponseResultsItem
from cohere.errors import UnprocessableEntityError

from tests.clients.conftest import Ranking


@pytest.fixture
def client(url: str) -> Iterator[ClientV2]:
    with ClientV2(api_key="none", base_url=url) as client:
        yield client


def pairs(results: list[V2RerankResponseResultsItem]) -> list[tuple[int, float]]:
    return [(entry.index, entry.relevance_score) for entry in results]


def test_rerank(client: ClientV2, ranking: Ranking) -> None:
    answer = client.rerank(model="any", query=ranking.query, documents=ranking.documents)
    ranking.check(pairs(answer.results))
    assert answer.id
    best = client.rerank(model="any", query=ranking.query, documents=ranking.documents, top_n=2, max_tokens_per_doc=100)
    ranking.check(pairs(best.results), top_n=2)


def test_embed(client: ClientV2, same: Any, texts: list[str]) -> None:
    answer = client.embed(model="any", texts=texts, input_type="search_document", embedding_types=["float"])
    same(answer.embeddings.float_)
    assert answer.texts == texts
    assert answer.meta is not None
    assert answer.meta.billed_units is not None
    assert (answer.meta.billed_units.input_tokens or 0) > 0


def test_every_form_of_a_vector(client: ClientV2, encode: Any, texts: list[str]) -> None:
    forms = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    found = client.embed(model="any", texts=texts, input_type="search_query", embedding_types=forms).embeddings
    vectors = np.array(found.float_)
    assert np.shape(found.int8) == np.shape(found.uint8) == vectors.shape
    np.testing.assert_array_equal(np.array(found.uint8) - 128, found.int8)
    np.testing.assert_array_equal(np.unpackbits(np.array(found.ubinary, np.uint8), axis=1), vectors > 0)
    np.testing.assert_array_equal(np.array(found.binary) + 128, found.ubinary)
    decoded = [np.frombuffer(base64.b64decode(text), "<f4") for text in found.base64 or ()]
    np.testing.assert_allclose(decoded, encode(texts), atol=1e-6)


def test_fewer_dimensions_and_a_cut_at_the_start(client: ClientV2, encode: Any) -> None:
    text = "the cat " * 300
    options = {"model": "any", "input_type": "classification", "output_dimension": 64, "truncate": "START"}
    (found,) = client.embed(texts=[text], embedding_types=["float"], **options).embeddings.float_
    assert found == pytest.approx(encode(text, dimensions=64, truncate="start")[0], abs=1e-6)


def test_refusal_is_its_own_error(client: ClientV2) -> None:
    with pytest.raises(UnprocessableEntityError) as raised:
        client.rerank(model="any", query="", documents=["a"])
    assert raised.value.body == {"message": "query: String should have at least 1 character"}
