"""`POST /encode` on artifacts of every task: what sentence-transformers and transformers give for the same folder."""

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.service.routes.conftest import Client
from tests.task_artifacts import TaskArtifact

TOLERANCE = 1e-5
TEXTS = ["the cat sat on the mat.", "a dog", "mat"]
PAIRS = [["the cat", "the cat sat on the mat."], ["a dog", "mat"], ["the cat " * 40, "a dog " * 20]]


def encode(client: TestClient, **body: Any) -> Any:
    response = client.post("/encode", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_reranker_scores_pairs_as_cross_encoder_does(client: Client, reranker: TaskArtifact) -> None:
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - seconds to import

    expected = CrossEncoder(str(reranker.folder)).predict([tuple(pair) for pair in PAIRS])
    answer = encode(client(reranker.artifact), pairs=PAIRS)
    np.testing.assert_allclose(np.array(answer["scores"])[:, 0], expected, atol=TOLERANCE, rtol=0)
    assert answer["labels"] == ["LABEL_0"]
    assert "embeddings" not in answer
    assert [item["truncated"] for item in answer["items"]] == [False, False, True]


def test_a_classifier_gives_a_score_a_label(client: Client, classifier: TaskArtifact) -> None:
    from transformers import pipeline  # noqa: PLC0415 - seconds to import

    expected: Any = pipeline("text-classification", str(classifier.folder), top_k=None)(TEXTS)
    answer = encode(client(classifier.artifact), inputs=TEXTS)
    for found, scores in zip(answer["scores"], expected, strict=True):
        by_label = {entry["label"]: entry["score"] for entry in scores}
        np.testing.assert_allclose(found, [by_label[label] for label in answer["labels"]], atol=TOLERANCE, rtol=0)


def test_a_sparse_model_gives_weights_of_words(client: Client, sparse_encoder: TaskArtifact) -> None:
    from sentence_transformers import SparseEncoder  # noqa: PLC0415 - seconds to import

    expected = SparseEncoder(str(sparse_encoder.folder)).encode(TEXTS, convert_to_sparse_tensor=False)
    answer = encode(client(sparse_encoder.artifact), inputs=TEXTS)
    for words, row in zip(answer["sparse"], np.asarray(expected), strict=True):
        found = np.zeros_like(row)
        found[words["indices"]] = words["values"]
        np.testing.assert_allclose(found, row, atol=TOLERANCE, rtol=0)


def test_a_multi_vector_model_gives_a_vector_a_token(client: Client, multi_vector_encoder: TaskArtifact) -> None:
    answer = encode(client(multi_vector_encoder.artifact), inputs=TEXTS)
    for vectors, item in zip(answer["embeddings"], answer["items"], strict=True):
        assert np.shape(vectors) == (item["tokens"], 16)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=TOLERANCE)


def test_attention_across_a_pair_is_transformers_own(client: Client, reranker: TaskArtifact) -> None:
    import torch  # noqa: PLC0415 - seconds to import
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415 - seconds to import

    network = AutoModelForSequenceClassification.from_pretrained(reranker.folder, attn_implementation="eager")
    batch = AutoTokenizer.from_pretrained(reranker.folder)(*PAIRS[0], return_tensors="pt")
    with torch.no_grad():
        expected = network(**batch, output_attentions=True).attentions
    (entry,) = encode(client(reranker.artifact), pairs=PAIRS[:1], attention={"layers": "all"})["attention"]
    for layer, weights in enumerate(expected):
        np.testing.assert_allclose(entry["weights"][layer], weights[0].numpy(), atol=TOLERANCE, rtol=0)
    second = entry["tokens"].index("[SEP]") + 1
    assert entry["segments"] == [None, *[0] * (second - 2), None, *[1] * (len(entry["tokens"]) - second - 1), None]
    assert entry["offsets"][1] == entry["offsets"][second] == [0, 3]


def test_words_of_a_pair_are_those_of_its_texts(client: Client, reranker: TaskArtifact) -> None:
    asked = {"layers": "all", "level": "word", "exclude_special": True}
    (entry,) = encode(client(reranker.artifact), pairs=PAIRS[:1], attention=asked)["attention"]
    assert entry["words"] == ["the", "cat", "the", "cat", "sat", "on", "the", "mat", "."]
    assert entry["segments"] == [0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert entry["offsets"][2] == [0, 3]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 422, "inputs: Field required"),
        ({"inputs": "a", "pairs": [["a", "b"]]}, 422, "pairs: give either inputs or pairs"),
        ({"pairs": [["a"]]}, 422, "pairs[0]: expected two texts, or two lists of token ids"),
        ({"pairs": [["a", "b"], [[1], [2]]]}, 422, "pairs: expected a list of pairs, each of two texts"),
        ({"pairs": [[[1], [10**6]]]}, 422, "pairs[0]: a token id is out of range"),
        ({"pairs": []}, 422, "pairs: expected a list of pairs"),
        ({"pairs": [["a", "b"]] * 3000}, 413, "pairs: 3000 pairs, at most 2048 a request are taken"),
        ({"pairs": [["a", "b"]], "dimensions": 2}, 422, "dimensions: drawn returns no vectors to cut"),
        ({"pairs": [["a cat " * 60, "a dog"]], "truncate": False}, 413, "pairs[0]: "),
        (
            {"pairs": [["cat " * 90, "dog"]], "pair_truncation": "only_second"},
            413,
            "pairs[0]: the first text has 180 tokens",
        ),
    ],
)
def test_pairs_that_cannot_be_read(
    client: Client, reranker: TaskArtifact, body: dict[str, Any], status: int, message: str
) -> None:
    response = client(reranker.artifact).post("/encode", json=body)
    assert response.status_code == status
    assert response.json()["error"]["message"].startswith(message)


def test_an_embedder_takes_no_pairs(client: Client, sparse_encoder: TaskArtifact) -> None:
    response = client(sparse_encoder.artifact).post("/encode", json={"pairs": [["a", "b"]]})
    assert response.status_code == 422
    assert response.json()["error"]["message"] == (
        "pairs: drawn reads one text at a time (its task is sparse); send inputs"
    )
