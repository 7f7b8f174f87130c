"""Haystack's embedders over OpenAI's API, and its rankers over TEI's, Jina's and Cohere's."""

from contextlib import closing
from typing import Any

import pytest
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from haystack_integrations.components.embedders.cohere import CohereDocumentEmbedder
from haystack_integrations.components.embedders.jina import JinaTextEmbedder
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker

from tests.clients.conftest import Ranking

KEY = Secret.from_token("none")


def embedded(embedder: Any, texts: list[str]) -> list[Any]:
    found = embedder.run([Document(content=text) for text in texts])["documents"]
    return [document.embedding for document in found]


def test_embedders_of_openai_and_cohere(url: str, same: Any, texts: list[str]) -> None:
    at = {"api_key": KEY, "api_base_url": f"{url}/v1", "model": "any"}
    with closing(OpenAIDocumentEmbedder(**at, progress_bar=False)) as embedder:
        same(embedded(embedder, texts))
    with closing(OpenAITextEmbedder(**at)) as query:
        same([query.run(text)["embedding"] for text in texts])
    cohere = CohereDocumentEmbedder(api_key=KEY, api_base_url=url, model="any", progress_bar=False)
    cohere.warm_up()
    with cohere._client:  # its own it would not close
        same(embedded(cohere, texts))


def test_embedder_of_jina_says_why_it_was_refused(url: str, same: Any, texts: list[str]) -> None:
    at = {"api_key": KEY, "base_url": f"{url}/v1/embeddings"}
    same([JinaTextEmbedder(**at).run(text)["embedding"] for text in texts])
    with pytest.raises(RuntimeError, match="dimensions: expected 1 to 384"):
        JinaTextEmbedder(**at, dimensions=999).run("a")


def test_rankers_of_tei_jina_and_cohere(url: str, ranking: Ranking) -> None:
    def check(ranker: Any, top_n: int | None) -> None:
        documents = [Document(content=text) for text in ranking.documents]
        found = ranker.run(query=ranking.query, documents=documents)["documents"]
        ranking.check([(ranking.documents.index(document.content), document.score) for document in found], top_n)

    check(HuggingFaceTEIRanker(url=url, token=None, top_k=3), 3)
    check(JinaRanker(api_key=KEY, base_url=f"{url}/v1/rerank"), None)
    cohere = CohereRanker(api_key=KEY, api_base_url=url, top_k=3)
    cohere.warm_up()
    with cohere._cohere_client:
        check(cohere, 3)
