"""LangChain, LlamaIndex and Haystack: over the APIs that they know, and over an engine of this process. And litellm.

litellm itself takes 190 MB and asks for another huggingface-hub than `export`: `make litellm-check` installs it into an
environment of its own and runs its test.
"""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tiktoken
from haystack import Document as HaystackDocument
from haystack import Pipeline
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from haystack_integrations.components.embedders.cohere import CohereDocumentEmbedder
from haystack_integrations.components.embedders.jina import JinaTextEmbedder
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker
from huggingface_hub import InferenceClient
from langchain_cohere import CohereRerank as LangChainCohereRerank
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import OpenAIEmbeddings
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.cohere_rerank import CohereRerank
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference
from pydantic import SecretStr

from polyhead import Engine
from polyhead.haystack import PolyheadDocumentEmbedder, PolyheadRanker, PolyheadTextEmbedder
from polyhead.langchain import PolyheadEmbeddings, PolyheadRerank
from polyhead.llama_index import PolyheadEmbedding
from polyhead.llama_index import PolyheadRerank as NodeReranker
from tests.clients.conftest import TEXTS, Ranking

KEY = Secret.from_token("none")
TOP = 3
LITELLM = Path(__file__).parents[2] / ".litellm/bin/python"
PLACES = {"infinity/any": "", "cohere/any": "", "jina_ai/any": "", "huggingface/any": "", "hosted_vllm/any": "/v1"}
"""Which `api_base` each kind of server has for litellm, after the service's address."""


@pytest.fixture(scope="module")
def engine(default_artifact: Path) -> Iterator[Engine]:
    with Engine.load(default_artifact, workers=1) as loaded:
        yield loaded


def check_langchain(embeddings: Any, same: Any) -> None:
    same(embeddings.embed_documents(TEXTS))
    same([embeddings.embed_query(text) for text in TEXTS])


def check_llama_index(embeddings: Any, same: Any) -> None:
    same(embeddings.get_text_embedding_batch(TEXTS))
    same([embeddings.get_query_embedding(text) for text in TEXTS])


def check_haystack(embedder: Any, same: Any) -> None:
    found = embedder.run([HaystackDocument(content=text) for text in TEXTS])["documents"]
    same([document.embedding for document in found])


def check_node_reranker(reranker: Any, ranking: Ranking) -> None:
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in ranking.documents]
    found = reranker.postprocess_nodes(nodes, query_str=ranking.query)
    ranking.check([(ranking.documents.index(entry.node.get_content()), entry.score) for entry in found], TOP)


def check_haystack_ranker(ranker: Any, ranking: Ranking, top_n: int | None = TOP) -> None:
    documents = [HaystackDocument(content=text) for text in ranking.documents]
    found = ranker.run(query=ranking.query, documents=documents)["documents"]
    ranking.check([(ranking.documents.index(document.content), document.score) for document in found], top_n)


def over_openai(url: str, **options: Any) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(base_url=f"{url}/v1", api_key=SecretStr("none"), model="any", max_retries=0, **options)


def test_langchain_embeds_over_openai_s_api(url: str, encode: Any, same: Any) -> None:
    embeddings = over_openai(url, check_embedding_ctx_length=False)
    check_langchain(embeddings, same)
    many = [f"text {index}" for index in range(300)]
    assert embeddings.chunk_size > len(many)  # that it sends at once
    found = embeddings.embed_documents(many)
    assert len(found) == len(many)
    assert found[-1] == pytest.approx(encode(many[-1])[0], abs=1e-6)


def test_langchain_s_token_ids_by_default_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default encoding would be downloaded; one of single bytes does what matters: it is not this model's."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=r"(?s).", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _name: encoding)
    with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False"):
        over_openai(url).embed_documents(TEXTS)


def test_langchain_embeds_through_huggingface_hub(url: str, same: Any) -> None:
    """Since 1.2 it accepts no URL for a model, so its clients are set."""
    embeddings = HuggingFaceEndpointEmbeddings(model="any/name", huggingfacehub_api_token="none")  # noqa: S106 - no secret
    embeddings.client = InferenceClient(model=url)
    check_langchain(embeddings, same)


def test_langchain_reranks_over_cohere_s_api(url: str, ranking: Ranking) -> None:
    reranker = LangChainCohereRerank(base_url=url, cohere_api_key=SecretStr("none"), model="any", top_n=TOP)
    documents = [Document(text) for text in ranking.documents]
    with reranker.client:
        found = reranker.rerank(ranking.documents, ranking.query)
        best = reranker.compress_documents(documents, ranking.query)
    ranking.check([(entry["index"], entry["relevance_score"]) for entry in found], TOP)
    assert [entry.page_content for entry in best] == [ranking.documents[index] for index in ranking.order[:TOP]]


def test_langchain_over_an_engine(engine: Engine, same: Any, ranking: Ranking) -> None:
    embeddings = PolyheadEmbeddings(engine)
    check_langchain(embeddings, same)
    same(asyncio.run(embeddings.aembed_documents(TEXTS)))
    assert len(PolyheadEmbeddings(engine, dimensions=7).embed_query("x")) == 7
    store = InMemoryVectorStore(embeddings)
    store.add_texts(ranking.documents)
    (best,) = store.similarity_search(ranking.query, k=1)
    assert best.page_content == ranking.documents[ranking.order[0]]
    documents = [Document(page_content=text, metadata={"place": place}) for place, text in enumerate(ranking.documents)]
    found = PolyheadRerank(engine=engine).compress_documents(documents, ranking.query)
    ranking.check([(one.metadata["place"], one.metadata["relevance_score"]) for one in found], TOP)


def test_langchain_puts_a_prompt_of_ones_own_before_texts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = {"query": "query: ", "document": "passage: "}
    manifest = replace(engine.manifest, defaults=replace(engine.manifest.defaults, prompts=prompts))
    monkeypatch.setattr(Engine, "manifest", property(lambda _: manifest))
    chosen: list[tuple[dict[str, Any], str]] = [({}, "query: "), ({"prompt": "ask: "}, "ask: "), ({"prompt": ""}, "")]
    for options, prompt in [*chosen, ({"prompt_name": "document"}, "passage: "), ({"role": "document"}, "passage: ")]:
        found = PolyheadEmbeddings(engine, **options).embed_query("a cat")
        np.testing.assert_array_equal(found, engine.encode(prompt + "a cat", prompt="").embeddings[0])


def test_llama_index_over_tei_jina_and_cohere(url: str, same: Any, ranking: Ranking) -> None:
    check_llama_index(TextEmbeddingsInference(base_url=url, model_name="any", timeout=60), same)
    check_node_reranker(TextEmbeddingInference(base_url=url, top_n=TOP), ranking)
    jina = JinaRerank(base_url=f"{url}/v1", api_key="none", top_n=TOP)
    with jina._session:  # its own it would not close
        check_node_reranker(jina, ranking)
    cohere = CohereRerank(base_url=url, api_key="none", model="any", top_n=TOP)
    with cohere._client:
        check_node_reranker(cohere, ranking)


def test_llama_index_over_an_engine(engine: Engine, same: Any, ranking: Ranking) -> None:
    embeddings = PolyheadEmbedding(engine)
    check_llama_index(embeddings, same)
    same(asyncio.run(embeddings.aget_text_embedding_batch(TEXTS)))
    assert len(PolyheadEmbedding(engine, dimensions=7).get_query_embedding("x")) == 7
    nodes = [TextNode(text=text) for text in ranking.documents]
    retriever = VectorStoreIndex(nodes, embed_model=embeddings).as_retriever(similarity_top_k=1)
    (best,) = retriever.retrieve(ranking.query)
    assert best.node.get_content() == ranking.documents[ranking.order[0]]
    check_node_reranker(NodeReranker(engine=engine), ranking)
    with pytest.raises(ValueError, match="needs the query"):
        NodeReranker(engine=engine).postprocess_nodes([best])


def test_llama_index_reads_metadata_as_an_index_does(engine: Engine) -> None:
    titled = [("Chapter one.", "Cats and where they sit"), ("The mat.", "x")]
    nodes = [NodeWithScore(node=TextNode(text=text, metadata={"title": title})) for text, title in titled]
    found = NodeReranker(engine=engine, top_n=1).postprocess_nodes(nodes, query_str="Where did the cat sit?")
    assert [one.node.metadata["title"] for one in found] == ["Cats and where they sit"]


@pytest.mark.parametrize("make", [PolyheadEmbedding, NodeReranker, PolyheadRerank])
def test_a_wrong_option_is_refused(engine: Engine, make: Any) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        make(engine=engine, nonsense=1)


def test_haystack_embeds_over_openai_s_and_cohere_s_apis(url: str, same: Any) -> None:
    at = {"api_key": KEY, "api_base_url": f"{url}/v1", "model": "any"}
    with closing(OpenAIDocumentEmbedder(**at, progress_bar=False)) as embedder:
        check_haystack(embedder, same)
    with closing(OpenAITextEmbedder(**at)) as query:
        same([query.run(text)["embedding"] for text in TEXTS])
    cohere = CohereDocumentEmbedder(api_key=KEY, api_base_url=url, model="any", progress_bar=False)
    cohere.warm_up()
    with cohere._client:  # its own it would not close
        check_haystack(cohere, same)


def test_haystack_s_embedder_of_jina_says_why_it_was_refused(url: str, same: Any) -> None:
    at = {"api_key": KEY, "base_url": f"{url}/v1/embeddings"}
    same([JinaTextEmbedder(**at).run(text)["embedding"] for text in TEXTS])
    with pytest.raises(RuntimeError, match="dimensions: expected 1 to 384"):
        JinaTextEmbedder(**at, dimensions=999).run("a")


def test_haystack_ranks_over_tei_jina_and_cohere(url: str, ranking: Ranking) -> None:
    check_haystack_ranker(HuggingFaceTEIRanker(url=url, token=None, top_k=TOP), ranking)
    check_haystack_ranker(JinaRanker(api_key=KEY, base_url=f"{url}/v1/rerank"), ranking, None)
    cohere = CohereRanker(api_key=KEY, api_base_url=url, top_k=TOP)
    cohere.warm_up()
    with cohere._cohere_client:
        check_haystack_ranker(cohere, ranking)


def test_haystack_over_an_engine(engine: Engine, same: Any, ranking: Ranking) -> None:
    check_haystack(PolyheadDocumentEmbedder(engine), same)
    pipeline = Pipeline()
    pipeline.add_component("query", PolyheadTextEmbedder(engine))
    same([pipeline.run({"query": {"text": text}})["query"]["embedding"] for text in TEXTS])
    check_haystack_ranker(PolyheadRanker(engine, top_k=TOP), ranking)


@pytest.mark.skipif(not LITELLM.exists(), reason="litellm is not there: make litellm-check")
def test_litellm_s_bodies_to_each_kind_of_server(url: str, ranking: Ranking) -> None:
    asked = {"query": ranking.query, "documents": ranking.documents, "top_n": TOP, "api_key": "none"}
    requests = [{**asked, "model": model, "api_base": url + path} for model, path in PLACES.items()]
    words = [str(LITELLM), str(Path(__file__).with_name("litellm_rerank.py")), json.dumps(requests)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603 - ours
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout[done.stdout.index("[") :])
    for answer in answers:
        ranking.check([(entry["index"], entry["relevance_score"]) for entry in answer["results"]], TOP)
    assert len(answers) == len(PLACES)
