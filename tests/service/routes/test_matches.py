"""What each token of a query found in a document, against MultiVectorEncoder; and what no model can be asked for."""

from typing import Any

import numpy as np
import pytest

from service.operations import score
from tests.service.routes.conftest import Client, post
from tests.task_artifacts import TaskArtifact

TOLERANCE = 1e-5
QUERY = "the cat sat"
DOCUMENTS = ["a dog", "The cat, sat on the mat. " * 8, "...", "don't they?"]


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
    answer = post(asked, "/score", queries=QUERY, documents=DOCUMENTS, matches=True)
    for document, entry in zip(DOCUMENTS, answer["data"], strict=True):
        assert sum(match["similarity"] for match in entry["matches"]) == pytest.approx(entry["score"], abs=1e-4)
        for match, wanted in zip(entry["matches"], reference(original, QUERY, document), strict=True):
            found = tuple(match["query_offsets"]), match["token"], tuple(match["offsets"])
            assert found == wanted[:3], document
            assert match["similarity"] == pytest.approx(wanted[3], abs=TOLERANCE)
    plain = post(asked, "/score", queries=QUERY, documents=DOCUMENTS)
    assert [entry["score"] for entry in plain["data"]] == [entry["score"] for entry in answer["data"]]
    assert "matches" not in plain["data"][0]


def test_both_forms_of_rerank_show_matches_of_documents(client: Client, multi_vector_encoder: TaskArtifact) -> None:
    asked = client(multi_vector_encoder.artifact)
    every = post(asked, "/rerank", query=QUERY, documents=DOCUMENTS, matches=True)["results"]
    first = post(asked, "/rerank", query=QUERY, documents=DOCUMENTS, matches=True, top_n=1)["results"]
    (tei, *_) = post(asked, "/rerank", query=QUERY, texts=DOCUMENTS, matches=True)
    assert first == every[:1]
    assert tei["matches"] == every[0]["matches"]
    each = post(asked, "/score", queries=[QUERY, "a dog"], documents=DOCUMENTS[:2], matches=True)["data"]
    assert [len(entry["matches"]) > 0 for entry in each] == [True, True]
    assert [one["query_token"] for one in each[1]["matches"]] != [one["query_token"] for one in each[0]["matches"]]


def test_matches_beyond_the_limit_are_refused_before_anything_runs(
    client: Client, multi_vector_encoder: TaskArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "MATCH_BYTES", 1 << 24)
    asked, body = client(multi_vector_encoder.artifact), {"query": "a", "documents": ["b"] * 3, "matches": True}
    response = asked.post("/rerank", json=body)
    assert response.status_code == 413
    assert "matches: 9 tokens with what they found take" in response.json()["error"]["message"]
