"""Haystack's embedders over OpenAI's API, and its rankers over TEI's, Jina's and Cohere's."""

from contextlib import closing
from typing import Any

from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from haystack_integrations.components.embedders.cohere import CohereDocumentEmbedder
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker

from tests.clients.conftest import Ranking

KEY = Secret.from_token("none")


def test_documents_and_queries(url: str, same: Any, texts: list[str]) -> None:
    at = {"api_key": KEY, "api_base_url": f"{url}/v1", "model": "any"}
    with closing(OpenAIDocumentEmbedder(**at, progress_bar=False)) as embedder:
        found = embedder.run([Document(content=text) for text in texts])["documents"]
    same([document.embedding for document in found])
    with closing(OpenAITextEmbedder(**at)) as query:
        same([query.run(text)["embedding"] for text in texts])


def check(ranker: Any, ranking: Ranking, top_n: int | None) -> None:
    documents = [Document(content=text) for text in ranking.documents]
    found = ranker.run(query=ranking.query, documents=documents)["documents"]
    ranking.check([(ranking.documents.index(document.content), document.score) for document in found], top_n)


def test_ranker_of_tei(url: str, ranking: Ranking) -> None:
    check(HuggingFaceTEIRanker(url=url, token=None, top_k=3), ranking, 3)


def test_ranker_of_jina(url: str, ranking: Ranking) -> None:
    check(JinaRanker(api_key=KEY, base_url=f"{url}/v1/rerank"), ranking, None)


def test_ranker_of_cohere(url: str, ranking: Ranking) -> None:
    ranker = CohereRanker(api_key=KEY, api_base_url=url, top_k=3)
    ranker.warm_up()
    with ranker._cohere_client:  # its own it would not close
        check(ranker, ranking, 3)


def test_cohere_s_embedder(url: str, same: Any, texts: list[str]) -> None:
    embedder = CohereDocumentEmbedder(api_key=KEY, api_base_url=url, model="any", progress_bar=False)
    embedder.warm_up()
    with embedder._client:
        found = embedder.run([Document(content=text) for text in texts])["documents"]
    same([document.embedding for document in found])
