"""Haystack's embedders over OpenAI's API."""

from contextlib import closing
from typing import Any

from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret


def test_documents_and_queries(url: str, same: Any, texts: list[str]) -> None:
    at = {"api_key": Secret.from_token("none"), "api_base_url": f"{url}/v1", "model": "any"}
    with closing(OpenAIDocumentEmbedder(**at, progress_bar=False)) as embedder:
        found = embedder.run([Document(content=text) for text in texts])["documents"]
    same([document.embedding for document in found])
    with closing(OpenAITextEmbedder(**at)) as query:
        same([query.run(text)["embedding"] for text in texts])
