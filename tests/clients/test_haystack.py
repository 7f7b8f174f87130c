"""Haystack's embedders over OpenAI's API."""

from typing import Any

from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret


def test_documents_and_queries(url: str, same: Any, texts: list[str]) -> None:
    key = Secret.from_token("none")
    embedder = OpenAIDocumentEmbedder(api_key=key, api_base_url=f"{url}/v1", model="any", progress_bar=False)
    found = embedder.run([Document(content=text) for text in texts])["documents"]
    same([document.embedding for document in found])
    query = OpenAITextEmbedder(api_key=key, api_base_url=f"{url}/v1", model="any")
    same([query.run(text)["embedding"] for text in texts])
