"""`POST /encode` on artifacts of every task: what sentence-transformers and transformers give for the same folder."""

import numpy as np
import pytest

from service.context import RequestContext
from tests.service.routes.conftest import Client, post, serving
from tests.task_artifacts import TaskArtifact

TOLERANCE = 1e-5
TEXTS = ["the cat sat on the mat.", "a dog", "mat"]
PAIRS = [["the cat", "the cat sat on the mat."], ["a dog", "mat"], ["the cat " * 40, "a dog " * 20]]


def test_a_reranker_scores_pairs_as_cross_encoder_does(client: Client, reranker: TaskArtifact) -> None:
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - seconds to import

    expected = CrossEncoder(str(reranker.folder)).predict([tuple(pair) for pair in PAIRS])
    answer = post(client(reranker.artifact), "/encode", pairs=PAIRS)
    np.testing.assert_allclose(np.array(answer["scores"])[:, 0], expected, atol=TOLERANCE, rtol=0)
    assert answer["labels"] == ["LABEL_0"]
    assert "embeddings" not in answer
    assert [item["truncated"] for item in answer["items"]] == [False, False, True]


def test_attention_across_a_pair_is_transformers_own(client: Client, reranker: TaskArtifact) -> None:
    import torch  # noqa: PLC0415 - seconds to import
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415 - seconds to import

    network = AutoModelForSequenceClassification.from_pretrained(reranker.folder, attn_implementation="eager")
    batch = AutoTokenizer.from_pretrained(reranker.folder)(*PAIRS[0], return_tensors="pt")
    with torch.no_grad():
        expected = network(**batch, output_attentions=True).attentions
    (entry,) = post(client(reranker.artifact), "/encode", pairs=PAIRS[:1], attention={"layers": "all"})["attention"]
    for layer, weights in enumerate(expected):
        np.testing.assert_allclose(entry["weights"][layer], weights[0].numpy(), atol=TOLERANCE, rtol=0)
    second = entry["tokens"].index("[SEP]") + 1
    assert entry["segments"] == [None, *[0] * (second - 2), None, *[1] * (len(entry["tokens"]) - second - 1), None]
    assert entry["offsets"][1] == entry["offsets"][second] == [0, 3]


def test_words_of_a_pair_are_those_of_its_texts(client: Client, reranker: TaskArtifact) -> None:
    asked = {"layers": "all", "level": "word", "exclude_special": True}
    (entry,) = post(client(reranker.artifact), "/encode", pairs=PAIRS[:1], attention=asked)["attention"]
    assert entry["words"] == ["the", "cat", "the", "cat", "sat", "on", "the", "mat", "."]
    assert entry["segments"] == [0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert entry["offsets"][2] == [0, 3]


@pytest.mark.parametrize(("path", "field"), [("/predict", "inputs"), ("/classify", "input")])
def test_labels_and_their_scores_count_in_the_size_of_an_answer(
    classifier: TaskArtifact, monkeypatch: pytest.MonkeyPatch, path: str, field: str
) -> None:
    of_text = sum(len(label) + 48 for label in ("contradiction", "entailment", "neutral"))
    held: list[int] = []
    monkeypatch.setattr(RequestContext, "hold_answer", lambda _context, _budget, size: held.append(size))
    with serving(classifier.artifact, f"--max-embedding-bytes={2 * of_text}") as asked:
        texts = [["cats"]] * 3 if path == "/predict" else ["cats"] * 3
        assert asked.post(path, json={field: texts[:2]}).status_code == 200
        response = asked.post(path, json={field: texts})
    assert response.status_code == 413
    assert f"{field}: the answer would hold {3 * of_text} bytes of labels and scores" in response.text
    assert held == [2 * (of_text + 21 * 3)]
