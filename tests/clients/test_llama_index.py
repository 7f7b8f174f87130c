"""LlamaIndex's client of text-embeddings-inference."""

import asyncio
from typing import Any

from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference


def test_texts_and_queries(url: str, same: Any, texts: list[str]) -> None:
    embeddings = TextEmbeddingsInference(base_url=url, model_name="any", timeout=60)
    same(embeddings.get_text_embedding_batch(texts))
    same([embeddings.get_query_embedding(text) for text in texts])
    same(asyncio.run(embeddings.aget_text_embedding_batch(texts)))
