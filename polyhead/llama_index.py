"""LlamaIndex's embeddings and reranker over an engine of this process: no server and no HTTP.

    from polyhead import Engine
    from polyhead.llama_index import PolyheadEmbedding, PolyheadRerank

    engine = Engine.load("artifacts/all-MiniLM-L6-v2")
    index = VectorStoreIndex.from_documents(documents, embed_model=PolyheadEmbedding(engine))

It needs the package llama-index-core.
"""

from typing import Any

import numpy as np
from llama_index.core.bridge.pydantic import ConfigDict, PrivateAttr
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from polyhead import Engine
from service.requests.roles import prompt_of_kind


class PolyheadEmbedding(BaseEmbedding):
    """Texts to vectors; queries and documents behind the prompts that the model has for them.

    Args:
        engine: of an embedding model.
        **fields: `dimensions`, and those of LlamaIndex's own class, such as `embed_batch_size`.
    """

    dimensions: int | None = None
    model_config = ConfigDict(extra="forbid")
    _engine: Engine = PrivateAttr()

    def __init__(self, engine: Engine, **fields: Any) -> None:
        super().__init__(**{"model_name": engine.manifest.model, "embed_batch_size": 256, **fields})
        self._engine = engine

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._rows(self._engine.encode(texts, **self._asked("document")))

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._rows(self._engine.encode([query], **self._asked("query")))[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._rows(await self._engine.aencode(texts, **self._asked("document")))

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._rows(await self._engine.aencode([query], **self._asked("query")))[0]

    def _asked(self, kind: str) -> dict[str, Any]:
        return {"prompt_name": prompt_of_kind(kind, self._engine.manifest), "dimensions": self.dimensions}

    @staticmethod
    def _rows(encoded: Any) -> list[list[float]]:
        return np.asarray(encoded.embeddings).tolist()  # type: ignore[no-any-return] # rows of numbers


class PolyheadRerank(BaseNodePostprocessor):
    """Nodes in the order of `Engine.rerank`, best first, with its scores; metadata are read as an index reads them.

    Attributes:
        engine: of a cross-encoder, a late-interaction model or an embedder.
        top_n: how many are kept; None for all.
    """

    engine: Engine
    top_n: int | None = 3
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("a reranker needs the query: pass query_bundle or query_str")
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        ranked = self.engine.rerank(query_bundle.query_str, texts, top_n=self.top_n)
        return [NodeWithScore(node=nodes[one.index].node, score=float(one.score)) for one in ranked]
