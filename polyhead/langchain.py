"""LangChain's embeddings and reranker over an engine of this process: no server and no HTTP.

    from polyhead import Engine
    from polyhead.langchain import PolyheadEmbeddings, PolyheadRerank

    engine = Engine.load("artifacts/all-MiniLM-L6-v2")
    store = InMemoryVectorStore(PolyheadEmbeddings(engine))

It needs the package langchain-core.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from pydantic import ConfigDict

from polyhead import Engine
from service.requests.roles import prompt_of_kind


class PolyheadEmbeddings(Embeddings):
    """Texts to vectors; queries and documents behind the prompts that the model has for them.

    Args:
        engine: of an embedding model.
        **options: of `Engine.encode`, such as `dimensions`. A prompt among them is put before queries and documents.
    """

    def __init__(self, engine: Engine, **options: Any) -> None:
        self._engine = engine
        self._options = options

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each document."""
        return self._rows(self._engine.encode(texts, **self._asked("document")))

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        return self._rows(self._engine.encode([text], **self._asked("query")))[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """As `embed_documents`, on an event loop."""
        return self._rows(await self._engine.aencode(texts, **self._asked("document")))

    async def aembed_query(self, text: str) -> list[float]:
        """As `embed_query`, on an event loop."""
        return self._rows(await self._engine.aencode([text], **self._asked("query")))[0]

    def _asked(self, kind: str) -> dict[str, Any]:
        if self._options.keys() & {"prompt", "role"}:  # which exclude the name of a prompt
            return self._options
        return {"prompt_name": prompt_of_kind(kind, self._engine.manifest), **self._options}

    @staticmethod
    def _rows(encoded: Any) -> list[list[float]]:
        return np.asarray(encoded.embeddings).tolist()  # type: ignore[no-any-return] # rows of numbers


class PolyheadRerank(BaseDocumentCompressor):
    """Documents in the order of `Engine.rerank`, best first, each with `relevance_score` in its metadata.

    Attributes:
        engine: of a cross-encoder, a late-interaction model or an embedder.
        top_n: how many are kept; None for all.
    """

    engine: Engine
    top_n: int | None = 3
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def compress_documents(
        self,
        documents: Sequence[Document],
        query: str,
        callbacks: Callbacks | None = None,  # noqa: ARG002 - LangChain's signature
    ) -> list[Document]:
        """The best documents for a query."""
        ranked = self.engine.rerank(query, [document.page_content for document in documents], top_n=self.top_n)
        return [
            documents[one.index].model_copy(
                update={"metadata": {**documents[one.index].metadata, "relevance_score": float(one.score)}}
            )
            for one in ranked
        ]
