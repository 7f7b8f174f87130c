"""Reranking, scoring and classifying, in the forms of TEI, Infinity, Jina, vLLM and Cohere; and what tokens found."""

from typing import Any

import numpy as np
import pytest

from service.operations import score
from service.tokenization.rows import RowTemplate
from tests.service.conftest import Serve
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


def test_an_embedder_answers_cosines(serve: Serve) -> None:
    served, documents = serve(), ["a dog", "the cat sat on the mat", "mat"]
    answer = post(served.client, "/rerank", query=QUERY, texts=documents)
    cosines = post(served.client, "/similarity", source=QUERY, targets=documents)["similarities"]
    assert [entry["index"] for entry in answer] == np.argsort(-np.array(cosines)).tolist()
    np.testing.assert_allclose([entry["score"] for entry in answer], -np.sort(-np.array(cosines)), atol=1e-6)
    assert served.metric("polyhead_stage_duration_seconds_count", stage="tokenize") == 2, "a stage of its own"


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


def test_predict_takes_texts_and_pairs_and_classify_texts(client: Client, classifier: TaskArtifact) -> None:
    from transformers import pipeline  # noqa: PLC0415 - seconds to import

    reference: Any = pipeline("text-classification", str(classifier.folder), top_k=None)
    asked = client(classifier.artifact)
    one = post(asked, "/predict", inputs="the cat")
    pair = post(asked, "/predict", inputs=["the cat", "a dog"])
    expected = reference(["the cat", {"text": "the cat", "text_pair": "a dog"}])
    for found, wanted in zip(one + pair, expected[0] + expected[1], strict=True):
        assert found["label"] == wanted["label"]
        assert found["score"] == pytest.approx(wanted["score"], abs=TOLERANCE)
    for function in ("none", "sigmoid", "softmax"):  # as huggingface_hub asks for one
        (expected,) = reference(["the cat"], function_to_apply=function, top_k=2)
        (found,) = post(asked, "/predict", inputs="the cat", parameters={"function_to_apply": function, "top_k": 2})
        assert [entry["label"] for entry in found] == [entry["label"] for entry in expected]
        np.testing.assert_allclose(
            [entry["score"] for entry in found], [entry["score"] for entry in expected], atol=TOLERANCE, rtol=0
        )
    assert post(asked, "/predict", inputs=["the cat"]) == one
    assert post(asked, "/predict", inputs=[["the cat"], ["a dog"]])[0] == one
    assert post(asked, "/predict", inputs=[["the cat", "a dog"]]) == [pair]
    answer = post(asked, "/classify", input=["the cat", "a dog"], model="x")
    assert (answer["object"], answer["data"][0], len(answer["data"])) == ("classify", one, 2)


def test_a_query_beyond_the_limit_is_named(client: Client, embedder: TaskArtifact, reranker: TaskArtifact) -> None:
    long = "cat " * 40_000
    for made in (embedder, reranker):
        asked = client(made.artifact)
        ours = asked.post("/rerank", json={"query": long, "documents": ["a"]}).json()["error"]
        assert (ours["param"], ours["message"][:7]) == ("query", "query: ")
        several = asked.post("/score", json={"queries": ["a", "a", long], "documents": ["a", "b", "c"]}).json()["error"]
        assert (several["param"], several["message"][:12]) == ("queries.2", "queries[2]: ")


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


@pytest.mark.parametrize(
    ("model", "capabilities"),
    [
        ("embedder", ["embed", "rerank"]),
        ("reranker", ["classify", "rerank"]),
        ("classifier", ["classify"]),
        ("multi_vector_encoder", ["rerank"]),
        ("sparse_encoder", []),
    ],
)
def test_infinity_s_clients_are_told_what_the_model_does(
    client: Client, request: pytest.FixtureRequest, model: str, capabilities: list[str]
) -> None:
    served: TaskArtifact = request.getfixturevalue(model)
    (described,) = client(served.artifact).get("/models").json()["data"]
    assert described["capabilities"] == capabilities


def test_too_many_tokens_are_refused_before_rows_are_made(
    client: Client, reranker: TaskArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(RowTemplate, "join")
    refused = client(reranker.artifact).post("/rerank", json={"query": "cat " * 100, "texts": ["a"] * 2000})
    assert refused.status_code == 413
    assert refused.json()["error"] == "texts: 128000 tokens, at most 65536 a request are taken; send fewer inputs"


ASKED = "the cat sat"
READ = ["a dog", "The cat, sat on the mat. " * 8, "...", "don't they?"]


def reference(original: Any, query: str, document: str) -> list[tuple[tuple[int, int], str, tuple[int, int], float]]:
    """Offsets of each token of the query, the document's token with its offsets, and their product."""
    vectors = np.asarray(original.encode_query([query])[0]), np.asarray(original.encode_document([document])[0])
    asked = read(original, original.prompts["query"], query, len(vectors[0]), skipped="")
    found = read(original, original.prompts["document"], document, len(vectors[1]), skipped=".")
    products = vectors[0] @ vectors[1].T
    return [(asked[row][1], *found[col], products[row, col]) for row, col in enumerate(products.argmax(axis=1))]


def read(
    original: Any, prompt: str | None, text: str, count: int, *, skipped: str
) -> list[tuple[str, tuple[int, int]]]:
    """Each token that counts, with its place in the text: cut to a number, or with the mask behind them."""
    prompt = prompt or ""
    encoding = original.tokenizer(prompt + text, return_offsets_mapping=True)
    names = original.tokenizer.convert_ids_to_tokens(encoding["input_ids"])
    spans = [(max(0, start - len(prompt)), max(0, end - len(prompt))) for start, end in encoding["offset_mapping"]]
    kept = [(name, span) for name, span in zip(names, spans, strict=True) if name != skipped]
    if len(kept) > count:
        return [*kept[: count - 1], kept[-1]]
    return kept + [("[MASK]", (0, 0))] * (count - len(kept))


@pytest.mark.parametrize("model", ["multi_vector_encoder", "expanding_encoder"])
def test_matches_are_the_products_of_the_score(client: Client, request: pytest.FixtureRequest, model: str) -> None:
    from sentence_transformers import MultiVectorEncoder  # noqa: PLC0415 - seconds to import

    served: TaskArtifact = request.getfixturevalue(model)
    asked, original = client(served.artifact), MultiVectorEncoder(str(served.folder))
    answer = post(asked, "/score", queries=ASKED, documents=READ, matches=True)
    for document, entry in zip(READ, answer["data"], strict=True):
        assert sum(match["similarity"] for match in entry["matches"]) == pytest.approx(entry["score"], abs=1e-4)
        for match, wanted in zip(entry["matches"], reference(original, ASKED, document), strict=True):
            found = tuple(match["query_offsets"]), match["token"], tuple(match["offsets"])
            assert found == wanted[:3], document
            assert match["similarity"] == pytest.approx(wanted[3], abs=TOLERANCE)
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
