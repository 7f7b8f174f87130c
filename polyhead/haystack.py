"""Haystack's components over an engine of this process: no server and no HTTP.

    from polyhead import Engine
    from polyhead.haystack import PolyheadDocumentEmbedder, PolyheadRanker, PolyheadTextEmbedder

    engine = Engine.load("artifacts/all-MiniLM-L6-v2")
    pipeline.add_component("query", PolyheadTextEmbedder(engine))

It needs the package haystack-ai.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from haystack import Document, component

from polyhead import Engine
from service.requests.roles import prompt_of_kind


def _encode(engine: Engine, texts: list[str], kind: str) -> list[list[float]]:
    encoded = engine.encode(texts, prompt_name=prompt_of_kind(kind, engine.manifest))
    return np.asarray(encoded.embeddings).tolist()  # type: ignore[no-any-return] # rows of numbers


@component
class PolyheadTextEmbedder:
    """The vector of a query, behind the prompt that the model has for queries."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """Embeds a text."""
        (vector,) = _encode(self._engine, [text], "query")
        return {"embedding": vector, "meta": {"model": self._engine.manifest.model}}


@component
class PolyheadDocumentEmbedder:
    """Documents with their vectors, behind the prompt that the model has for documents."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Embeds documents; the given ones stay as they are."""
        vectors = _encode(self._engine, [document.content or "" for document in documents], "document")
        embedded = [replace(one, embedding=vector) for one, vector in zip(documents, vectors, strict=True)]
        return {"documents": embedded, "meta": {"model": self._engine.manifest.model}}


@component
class PolyheadRanker:
    """Documents in the order of `Engine.rerank`, best first, with its scores.

    Args:
        engine: of a cross-encoder, a late-interaction model or an embedder.
        top_k: how many are kept; None for all.
    """

    def __init__(self, engine: Engine, top_k: int | None = 10) -> None:
        self._engine = engine
        self._top_k = top_k

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, Any]:
        """Ranks documents."""
        texts = [document.content or "" for document in documents]
        ranked = self._engine.rerank(query, texts, top_n=self._top_k if top_k is None else top_k)
        return {"documents": [replace(documents[one.index], score=float(one.score)) for one in ranked]}
