"""LlamaIndex's client of text-embeddings-inference, and its rerankers over the APIs of TEI, Jina and Cohere."""

from typing import Any

from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.cohere_rerank import CohereRerank
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

from tests.clients.conftest import Ranking


def test_texts_and_queries(url: str, same: Any, texts: list[str]) -> None:
    embeddings = TextEmbeddingsInference(base_url=url, model_name="any", timeout=60)
    same(embeddings.get_text_embedding_batch(texts))
    same([embeddings.get_query_embedding(text) for text in texts])


def test_rerankers_of_tei_jina_and_cohere(url: str, ranking: Ranking) -> None:
    def check(reranker: Any) -> None:
        nodes = [NodeWithScore(node=TextNode(text=text)) for text in ranking.documents]
        found = reranker.postprocess_nodes(nodes, query_str=ranking.query)
        ranking.check([(ranking.documents.index(entry.node.get_content()), entry.score) for entry in found], top_n=3)

    check(TextEmbeddingInference(base_url=url, top_n=3))
    jina = JinaRerank(base_url=f"{url}/v1", api_key="none", top_n=3)
    with jina._session:  # its own it would not close
        check(jina)
    cohere = CohereRerank(base_url=url, api_key="none", model="any", top_n=3)
    with cohere._client:
        check(cohere)
