"""Reranking, scoring and classifying, in the forms of TEI, Infinity, Jina, vLLM and Cohere; and what tokens found."""

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from model.artifact import TOKENIZER
from service.operations import score
from service.tokenization.rows import RowTemplate
from tests.service.conftest import EngineOf
from tests.service.process import read_sample
from tests.service.routes.conftest import Client, post
from tests.task_artifacts import TaskArtifact

TOLERANCE = 1e-5
QUERY = "the cat"
DOCUMENTS = ["a dog", "the cat sat on the mat.", "mat", "the dog sat"]


@pytest.fixture(scope="module")
def expected(reranker: TaskArtifact) -> Any:
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - seconds to import

    return CrossEncoder(str(reranker.folder)).predict([(QUERY, document) for document in DOCUMENTS])


def test_every_api_s_form(client: Client, reranker: TaskArtifact, expected: Any) -> None:
    asked, order = client(reranker.artifact), np.argsort(-expected).tolist()
    tei = post(asked, "/rerank", query=QUERY, texts=DOCUMENTS, return_text=True)
    assert [entry["index"] for entry in tei] == order
    for entry in tei:
        assert entry["score"] == pytest.approx(expected[entry["index"]], abs=TOLERANCE)
        assert entry["text"] == DOCUMENTS[entry["index"]]
    infinity = post(asked, "/rerank", query=QUERY, documents=DOCUMENTS, top_n=2, model="x")
    assert infinity["object"] == "rerank"
    assert [entry["index"] for entry in infinity["results"]] == order[:2]
    assert "document" not in infinity["results"][0]
    for yes in (True, "true"):  # RAGFlow writes a text
        shown = post(asked, "/rerank", query=QUERY, documents=DOCUMENTS, return_documents=yes)
        assert shown["results"][0]["document"] == DOCUMENTS[order[0]]
    objects = [{"text": text} for text in DOCUMENTS]
    jina = post(asked, "/v1/rerank", query=QUERY, documents=objects, model="x", return_documents="true")
    assert jina["results"][0]["document"] == {"text": DOCUMENTS[order[0]]}
    cohere = post(asked, "/v2/rerank", query=QUERY, documents=DOCUMENTS, model="x", top_n=1)
    assert [entry["index"] for entry in cohere["results"]] == order[:1]
    for found in (infinity, cohere):
        assert found["results"][0]["relevance_score"] == pytest.approx(expected.max(), abs=TOLERANCE)


def test_vllm_s_defaults_change_nothing_and_its_activation_gives_logits(
    client: Client, reranker: TaskArtifact, expected: Any
) -> None:
    asked, logits = client(reranker.artifact), np.log(expected) - np.log1p(-expected)
    pairs = {"text_1": QUERY, "text_2": DOCUMENTS}, {"data_1": QUERY, "data_2": DOCUMENTS}
    for form in (*pairs, {"queries": QUERY, "items": DOCUMENTS}):
        for flag, wanted in (({}, expected), ({"use_activation": False}, logits), ({"activation": False}, logits)):
            found = post(asked, "/score", **form, **flag)["data"]
            np.testing.assert_allclose([entry["score"] for entry in found], wanted, atol=TOLERANCE)
    defaults = {"top_n": 0, "max_tokens_per_doc": 0, "return_documents": None}
    for path, fields in (("/v1/rerank", defaults), ("/rerank", {"top_n": 0})):
        found = post(asked, path, query=QUERY, documents=DOCUMENTS, use_activation=False, **fields)["results"]
        assert [entry["index"] for entry in found] == np.argsort(-expected).tolist()
        assert found[0]["relevance_score"] == pytest.approx(logits.max(), abs=TOLERANCE)


def test_a_language_model_says_yes_or_no(client: Client, yes_no_reranker: TaskArtifact) -> None:
    from tests.yes_no import WEB, ask  # noqa: PLC0415 - seconds to import

    query, asked = "why did the cat sit?", client(yes_no_reranker.artifact)
    _, scores = ask(yes_no_reranker.folder, [(query, document) for document in DOCUMENTS], WEB, 500)
    answer = post(asked, "/rerank", query=query, texts=DOCUMENTS)
    assert [entry["index"] for entry in answer] == np.argsort(-np.array(scores)).tolist()
    assert {entry["index"]: entry["score"] for entry in answer} == pytest.approx(dict(enumerate(scores)), abs=TOLERANCE)
    attention = {"layers": "last", "level": "word"}
    shown = post(asked, "/rerank", query=query, documents=DOCUMENTS[:1], attention=attention)["results"][0]
    words, segments = (shown["attention"][name] for name in ("words", "segments"))
    for segment, text in enumerate(("why did the cat sit ?", DOCUMENTS[0])):
        assert [word for word, own in zip(words, segments, strict=True) if own == segment] == text.split()
    answered = asked.post("/encode", json={"pairs": [[[5], [6]]]})
    assert answered.status_code == 422
    assert "send texts, not token ids" in answered.json()["error"]["message"]


def test_scores_of_one_query_and_of_one_each(client: Client, reranker: TaskArtifact, expected: Any) -> None:
    asked = client(reranker.artifact)
    many = post(asked, "/score", queries=QUERY, documents=DOCUMENTS)
    np.testing.assert_allclose([entry["score"] for entry in many["data"]], expected, atol=TOLERANCE)
    assert post(asked, "/v1/score", text_1=[QUERY] * len(DOCUMENTS), text_2=DOCUMENTS)["data"] == many["data"]
    for body in ({"queries": "a cat", "documents": ""}, {"text_1": "", "text_2": "a cat"}):  # an empty text is one
        assert [entry["index"] for entry in post(asked, "/score", **body)["data"]] == [0]
    raw = post(asked, "/score", queries=QUERY, documents=DOCUMENTS, raw_scores=True)
    logits = np.array([entry["score"] for entry in raw["data"]])
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), expected, atol=TOLERANCE)


def test_attention_across_the_pair_with_its_blocks(client: Client, reranker: TaskArtifact) -> None:
    asked = client(reranker.artifact)
    before = read_sample(asked.get("/metrics").text, "polyhead_attention_bytes_total")
    found = post(asked, "/rerank", query=QUERY, texts=DOCUMENTS[:2], attention={"layers": "all"})
    blocks = ("weights", "query_to_document", "document_to_query")
    size = sum(np.array(layer).size for one in found for name in blocks for layer in one["attention"][name])
    assert read_sample(asked.get("/metrics").text, "polyhead_attention_bytes_total") - before == 4 * size
    entry = found[0]["attention"]
    weights, segments = [np.array(layer) for layer in entry["weights"]], np.array(entry["segments"], dtype=object)
    query, document = (np.flatnonzero(segments == text) for text in (0, 1))
    for layer, block in enumerate(entry["query_to_document"]):
        np.testing.assert_array_equal(block, weights[layer][:, query[:, None], document])
        mass = weights[layer][:, query[:, None], document].sum(2).mean(1)
        np.testing.assert_allclose(entry["query_to_document_mass"][layer], mass, atol=1e-6)
    np.testing.assert_array_equal(entry["document_to_query"][0], weights[0][:, document[:, None], query])


def test_a_head_mask_changes_the_score(client: Client, reranker: TaskArtifact) -> None:
    asked = client(reranker.artifact)
    whole = post(asked, "/rerank", query=QUERY, texts=["mat"], raw_scores=True)
    masked = post(asked, "/rerank", query=QUERY, texts=["mat"], raw_scores=True, head_mask=[[0, 0, 0]])
    assert whole[0]["score"] != masked[0]["score"]


def test_texts_that_were_cut_are_counted_in_a_header(client: Client, reranker: TaskArtifact) -> None:
    asked = client(reranker.artifact)
    for texts, cut in ((["cat " * 90, "b"], "1"), (["b"], None)):
        answer = asked.post("/rerank", json={"query": "a", "texts": texts})
        assert answer.headers.get("x-truncated-inputs") == cut


def test_every_failure_of_a_body_has_the_shape_of_its_api(client: Client, reranker: TaskArtifact) -> None:
    asked = client(reranker.artifact)
    assert asked.post("/v2/rerank", json={"query": "a"}).json() == {"message": "documents: Field required"}
    for path, message in (("/v1/rerank", "documents: Field required"), ("/v1/embeddings", "input: Field required")):
        jina = asked.post(path, json={"query": "a"} if path == "/v1/rerank" else {}).json()
        assert jina["detail"] == jina["error"]["message"] == message
    too_long = {"query": "a", "truncate": False}
    assert asked.post("/rerank", json={**too_long, "texts": ["cat " * 90]}).json()["error_type"] == "Validation"
    assert asked.post("/rerank", json={**too_long, "documents": ["cat " * 90]}).json()["error"]["code"] == "too_large"
    headers = {"accept": "text/csv", "content-type": "application/json"}
    for content in (b'{"query": "a", "documents": ["b"]}', b'{"query": "a", "documents": ['):
        assert "code" in asked.post("/rerank", content=content, headers=headers).json()["error"]
    for content in (b'{"query": "a", "texts": ["documents"]}', b'{"texts": ["\\"documents\\": "'):
        assert asked.post("/rerank", content=content, headers=headers).json()["error_type"] == "Validation"


def test_large_attention_of_pairs_is_compressed(client: Client, reranker: TaskArtifact) -> None:
    body = {"query": "the cat " * 9, "texts": ["a dog " * 9] * 40, "attention": {"layers": "all"}}
    response = client(reranker.artifact).post("/rerank", json=body, headers={"accept-encoding": "gzip"})
    assert response.headers["content-encoding"] == "gzip"
    assert len(response.json()) == 40


def test_python_orders_as_http_does(engine_of: EngineOf, reranker: TaskArtifact, expected: Any) -> None:
    engine, order = engine_of(reranker.artifact), np.argsort(-expected).tolist()
    found = engine.rerank(QUERY, iter(DOCUMENTS), attention={"layers": "last"})
    assert [(one.index, one.document) for one in found] == [(place, DOCUMENTS[place]) for place in order]
    np.testing.assert_allclose([one.score for one in found], expected[order], atol=TOLERANCE)
    assert found[0].attention is not None
    assert found[0].attention["query_to_document_mass"][0].shape == (4,)
    assert [one.index for one in engine.rerank(QUERY, DOCUMENTS, top_n=2)] == order[:2]
    assert engine.rerank(QUERY, []) == []
    raw = engine.score(QUERY, DOCUMENTS, raw_scores=True)
    for scores in (engine.score([QUERY] * len(DOCUMENTS), DOCUMENTS), 1 / (1 + np.exp(-raw))):
        np.testing.assert_allclose(scores, expected, atol=TOLERANCE)
    cut = engine.rerank(QUERY, DOCUMENTS, max_tokens_per_doc=1, attention={"layers": "last"})
    assert {one.attention["segments"].count(1) for one in cut if one.attention is not None} == {1}


def test_infinity_s_clients_are_told_what_the_model_does(client: Client, request: pytest.FixtureRequest) -> None:
    capabilities = {"embedder": ["embed", "rerank"], "reranker": ["classify", "rerank"], "classifier": ["classify"]}
    for model, expected in {**capabilities, "multi_vector_encoder": ["rerank"], "sparse_encoder": []}.items():
        (described,) = client(request.getfixturevalue(model).artifact).get("/models").json()["data"]
        assert described["capabilities"] == expected, model


def test_too_many_tokens_are_refused_before_rows_are_made(
    client: Client, reranker: TaskArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(RowTemplate, "join")
    refused = client(reranker.artifact).post("/rerank", json={"query": "cat " * 100, "texts": ["a"] * 2000})
    assert refused.status_code == 413
    assert refused.json()["error"] == "texts: 128000 tokens, at most 65536 a request are taken; send fewer inputs"


ASKED = "the cat sat"
READ = ["a dog", "The cat, sat on the mat. " * 8, "...", "don't they?"]


@pytest.mark.parametrize("model", ["multi_vector_encoder", "expanding_encoder"])
def test_matches_are_the_products_of_the_score(client: Client, request: pytest.FixtureRequest, model: str) -> None:
    """Of vectors and tokens that `test_encode_formats.py` compares with the original's."""
    served: TaskArtifact = request.getfixturevalue(model)
    asked, name = client(served.artifact), Tokenizer.from_file(str(served.artifact / TOKENIZER)).id_to_token
    answer = post(asked, "/score", queries=ASKED, documents=READ, matches=True)
    query = post(asked, "/encode", inputs=[ASKED], role="query", return_tokens=True)
    documents = post(asked, "/encode", inputs=READ, role="document", return_tokens=True)
    for vectors, tokens, entry in zip(documents["embeddings"], documents["tokens"], answer["data"], strict=True):
        products = np.array(query["embeddings"][0]) @ np.array(vectors).T
        assert entry["score"] == pytest.approx(products.max(axis=1).sum(), abs=1e-4)
        for match, offsets, row in zip(entry["matches"], query["tokens"][0]["offsets"], products, strict=True):
            best = row.argmax()
            found = match["query_offsets"], match["token"], match["offsets"]
            assert found == (offsets, name(tokens["input_ids"][best]), tokens["offsets"][best])
            assert match["similarity"] == pytest.approx(row[best], abs=TOLERANCE)
    plain = post(asked, "/score", queries=ASKED, documents=READ)
    assert [entry["score"] for entry in plain["data"]] == [entry["score"] for entry in answer["data"]]
    assert "matches" not in plain["data"][0]


def test_both_forms_of_rerank_show_matches_of_documents(client: Client, multi_vector_encoder: TaskArtifact) -> None:
    asked = client(multi_vector_encoder.artifact)
    every = post(asked, "/rerank", query=ASKED, documents=READ, matches=True)["results"]
    first = post(asked, "/rerank", query=ASKED, documents=READ, matches=True, top_n=1)["results"]
    (tei, *_) = post(asked, "/rerank", query=ASKED, texts=READ, matches=True)
    assert first == every[:1]
    assert tei["matches"] == every[0]["matches"]
    each = post(asked, "/score", queries=[ASKED, "a dog"], documents=READ[:2], matches=True)["data"]
    assert [len(entry["matches"]) > 0 for entry in each] == [True, True]
    assert [one["query_token"] for one in each[1]["matches"]] != [one["query_token"] for one in each[0]["matches"]]


def test_matches_beyond_the_limit_are_refused_before_anything_runs(
    client: Client, multi_vector_encoder: TaskArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "MATCH_BYTES", 1 << 23)
    asked, body = client(multi_vector_encoder.artifact), {"query": "a", "documents": ["b"] * 3, "matches": True}
    response = asked.post("/rerank", json=body)
    assert response.status_code == 413
    assert "matches: 9 tokens with what they found take" in response.json()["error"]["message"]
    assert asked.post("/rerank", json={**body, "top_n": 1}).status_code == 200, "as the message says"
