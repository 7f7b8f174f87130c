"""LangChain's embeddings over OpenAI's API and, through huggingface_hub, TEI's; its reranker over Cohere's."""

from typing import Any

import openai
import pytest
import tiktoken
from huggingface_hub import InferenceClient
from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from tests.clients.conftest import Ranking


def over_openai(url: str, **options: Any) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(base_url=f"{url}/v1", api_key=SecretStr("none"), model="any", max_retries=0, **options)


def test_openai_texts(url: str, same: Any, texts: list[str]) -> None:
    embeddings = over_openai(url, check_embedding_ctx_length=False)
    same(embeddings.embed_documents(texts))
    same([embeddings.embed_query(text) for text in texts])


def test_openai_as_many_texts_as_it_sends_at_once(url: str, encode: Any) -> None:
    many = [f"text {index}" for index in range(300)]
    assert over_openai(url).chunk_size > len(many)
    found = over_openai(url, check_embedding_ctx_length=False).embed_documents(many)
    assert len(found) == len(many)
    assert found[-1] == pytest.approx(encode(many[-1])[0], abs=1e-6)


def test_openai_token_ids_by_default_are_refused(url: str, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The default encoding would be downloaded; one of single bytes does what matters: it is not this model's."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=r"(?s).", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _name: encoding)
    with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False"):
        over_openai(url).embed_documents(texts)


def test_huggingface(url: str, same: Any, texts: list[str]) -> None:
    """Since 1.2 it accepts no URL for a model, so its clients are set."""
    embeddings = HuggingFaceEndpointEmbeddings(model="any/name", huggingfacehub_api_token="none")  # noqa: S106 - no secret
    embeddings.client = InferenceClient(model=url)
    same(embeddings.embed_documents(texts))
    same([embeddings.embed_query(text) for text in texts])


def test_cohere_s_reranker(url: str, ranking: Ranking) -> None:
    reranker = CohereRerank(base_url=url, cohere_api_key=SecretStr("none"), model="any", top_n=3)
    documents = [Document(text) for text in ranking.documents]
    with reranker.client:
        found = reranker.rerank(ranking.documents, ranking.query)
        best = reranker.compress_documents(documents, ranking.query)
    ranking.check([(entry["index"], entry["relevance_score"]) for entry in found], top_n=3)
    assert [entry.page_content for entry in best] == [ranking.documents[index] for index in ranking.order[:3]]
