"""Classes for LangChain, LlamaIndex and Haystack over an engine of this process, without a server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from haystack import Document as HaystackDocument
from haystack import Pipeline
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import NodeWithScore, TextNode

from polyhead import Engine
from polyhead.haystack import PolyheadDocumentEmbedder, PolyheadRanker, PolyheadTextEmbedder
from polyhead.langchain import PolyheadEmbeddings, PolyheadRerank
from polyhead.llama_index import PolyheadEmbedding
from polyhead.llama_index import PolyheadRerank as NodeReranker
from tests.clients.conftest import Ranking


@pytest.fixture(scope="module")
def engine(default_artifact: Path) -> Iterator[Engine]:
    with Engine.load(default_artifact, workers=1) as loaded:
        yield loaded


def test_langchain(engine: Engine, same: Any, texts: list[str], ranking: Ranking) -> None:
    embeddings = PolyheadEmbeddings(engine)
    same(embeddings.embed_documents(texts))
    same(asyncio.run(embeddings.aembed_documents(texts)))
    same([embeddings.embed_query(text) for text in texts])
    assert len(PolyheadEmbeddings(engine, dimensions=7).embed_query("x")) == 7
    store = InMemoryVectorStore(embeddings)
    store.add_texts(ranking.documents)
    (best,) = store.similarity_search(ranking.query, k=1)
    assert best.page_content == ranking.documents[ranking.order[0]]
    documents = [Document(page_content=text, metadata={"place": place}) for place, text in enumerate(ranking.documents)]
    found = PolyheadRerank(engine=engine).compress_documents(documents, ranking.query)
    ranking.check([(one.metadata["place"], one.metadata["relevance_score"]) for one in found], 3)


def test_llama_index(engine: Engine, same: Any, texts: list[str], ranking: Ranking) -> None:
    embeddings = PolyheadEmbedding(engine)
    same(embeddings.get_text_embedding_batch(texts))
    same(asyncio.run(embeddings.aget_text_embedding_batch(texts)))
    same([embeddings.get_query_embedding(text) for text in texts])
    nodes = [TextNode(text=text) for text in ranking.documents]
    retriever = VectorStoreIndex(nodes, embed_model=embeddings).as_retriever(similarity_top_k=1)
    (best,) = retriever.retrieve(ranking.query)
    assert best.node.get_content() == ranking.documents[ranking.order[0]]
    scored = [NodeWithScore(node=node) for node in nodes]
    found = NodeReranker(engine=engine).postprocess_nodes(scored, query_str=ranking.query)
    ranking.check([(ranking.documents.index(one.node.get_content()), one.score) for one in found], 3)
    with pytest.raises(ValueError, match="needs the query"):
        NodeReranker(engine=engine).postprocess_nodes(scored)
    assert len(PolyheadEmbedding(engine, dimensions=7).get_query_embedding("x")) == 7


def test_llama_index_reads_metadata_as_an_index_does(engine: Engine) -> None:
    titled = [("Chapter one.", "Cats and where they sit"), ("The mat.", "x")]
    nodes = [NodeWithScore(node=TextNode(text=text, metadata={"title": title})) for text, title in titled]
    found = NodeReranker(engine=engine, top_n=1).postprocess_nodes(nodes, query_str="Where did the cat sit?")
    assert [one.node.metadata["title"] for one in found] == ["Cats and where they sit"]


@pytest.mark.parametrize("make", [PolyheadEmbedding, NodeReranker, PolyheadRerank])
def test_a_wrong_option_is_refused(engine: Engine, make: Any) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        make(engine=engine, nonsense=1)


def test_haystack(engine: Engine, same: Any, texts: list[str], ranking: Ranking) -> None:
    embedded = PolyheadDocumentEmbedder(engine).run([HaystackDocument(content=text) for text in texts])["documents"]
    same([document.embedding for document in embedded])
    pipeline = Pipeline()
    pipeline.add_component("query", PolyheadTextEmbedder(engine))
    same([pipeline.run({"query": {"text": text}})["query"]["embedding"] for text in texts])
    documents = [HaystackDocument(content=text) for text in ranking.documents]
    found = PolyheadRanker(engine, top_k=3).run(ranking.query, documents)["documents"]
    ranking.check([(ranking.documents.index(document.content), document.score) for document in found], 3)
