"""Entities over HTTP and from Python equal the pipeline of `transformers`; refused requests."""

from typing import Any

import numpy as np
import pytest

from polyhead import Engine
from service.requests.explain import ExplainedScores
from tests.service.routes.conftest import Client, post
from tests.task_artifacts import LONGEST, TaskArtifact

TEXTS = ["the cats sat on the mats.", "lower newest wider: abc123 naïve café!", "a", ""]
LONG = "the cats sat on the mats, lower newest wider. " * 12


@pytest.fixture(scope="module")
def pipeline(token_classifier: TaskArtifact) -> Any:
    from transformers import pipeline  # noqa: PLC0415 - seconds to import

    return pipeline("token-classification", str(token_classifier.folder), device="cpu")


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [{**entity, "score": None} for entity in found] == [{**entity, "score": None} for entity in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["score"] == pytest.approx(float(other["score"]), abs=1e-5)


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_entities_are_those_of_the_pipeline(
    client: Client, token_classifier: TaskArtifact, pipeline: Any, aggregation: str
) -> None:
    asked = client(token_classifier.artifact)
    expected = [pipeline(text, aggregation_strategy=aggregation, ignore_labels=["B-LOC"]) for text in TEXTS]
    assert sum(map(len, expected)) >= 4
    found = post(asked, "/predict", inputs=TEXTS, level="tokens", aggregation=aggregation, ignore_labels=["B-LOC"])
    parameters = {"aggregation_strategy": aggregation, "ignore_labels": ["B-LOC"]}
    theirs = asked.post("/", json={"inputs": TEXTS[0], "parameters": parameters}).json()
    for one, other in zip([*found, theirs], [*expected, expected[0]], strict=True):
        same(one, other)
    if aggregation == "first":
        with Engine.load(token_classifier.artifact) as engine:
            for one, other in zip(
                engine.entities(TEXTS, aggregation="first", ignore_labels=["B-LOC"]), expected, strict=True
            ):
                same(one, other)


def test_a_long_text_is_read_in_windows_joined(client: Client, token_classifier: TaskArtifact, pipeline: Any) -> None:
    import torch  # noqa: PLC0415 - seconds to import

    asked = client(token_classifier.artifact)
    wanted = {"overlap": 30, "ignore_labels": []}
    answer = post(asked, "/encode", inputs=LONG, long_texts="windows", entities=wanted)
    (whole,) = post(asked, "/encode", inputs=LONG, long_texts="windows")["scores"]
    found = post(asked, "/predict", inputs=LONG, overlap=30, ignore_labels=[])
    same(found, answer["entities"][0])
    tokens = pipeline.tokenizer(LONG, truncation=False, verbose=False)["input_ids"]
    assert len(whole) == len(tokens) > 2 * LONGEST
    assert answer["items"][0]["windows"] == -(-(len(tokens) - 2 - 30) // (LONGEST - 2 - 30))
    first = torch.tensor([[*tokens[: LONGEST - 1], tokens[-1]]])
    with torch.inference_mode():
        logits = pipeline.model(first).logits[0].softmax(dim=-1)
    torch.testing.assert_close(torch.tensor(whole[:40]), logits[:40], atol=1e-5, rtol=0)
    cut = post(asked, "/predict", inputs=LONG, truncate=True, ignore_labels=[])
    assert cut[-1]["end"] < found[-1]["end"] == len(LONG.rstrip())
    as_the_client_sends = {"truncate": True, "ignore_labels": [], "parameters": {"stride": 10}}
    assert cut == post(asked, "/predict", inputs=LONG, **as_the_client_sends)
    assert asked.post("/predict", json={"inputs": LONG, "truncate": False}).status_code == 413


def test_scores_and_attention_of_tokens(client: Client, token_classifier: TaskArtifact) -> None:
    body = {"inputs": TEXTS[:2], "attention": {"layers": "all"}, "entities": {"aggregation": "first"}}
    answer = client(token_classifier.artifact).post("/encode", json=body).json()
    plain = client(token_classifier.artifact).post("/encode", json={"inputs": TEXTS[:2]}).json()
    assert plain["labels"] == ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    for scores, item, entities, attention in zip(
        plain["scores"], answer["items"], answer["entities"], answer["attention"], strict=True
    ):
        assert [len(row) for row in scores] == [5] * item["tokens"]
        assert [sum(row) for row in scores] == pytest.approx([1] * item["tokens"], abs=1e-6)
        starts = {start for start, _ in attention["offsets"]}
        assert all(entity["start"] in starts for entity in entities)


def test_a_words_label_is_explained_by_the_texts_tokens(client: Client, token_classifier: TaskArtifact) -> None:
    asked, text = client(token_classifier.artifact), TEXTS[0]
    scores = asked.post("/encode", json={"inputs": text}).json()["scores"][0]
    at = text.index("sat") + 1
    response = asked.post("/explain", json={"a": text, "at": at, "through": "network"})
    answer = response.json()
    ExplainedScores.model_validate_json(response.content)
    assert answer["text"]["tokens"][answer["token"]] == "sat"
    logits = np.array(answer["logits"])
    np.testing.assert_allclose(np.exp(logits) / np.exp(logits).sum(), scores[answer["token"]], atol=1e-5)
    np.testing.assert_allclose(np.sum(answer["contributions"], axis=1), logits, atol=1e-5)
    with Engine.load(token_classifier.artifact) as engine:
        explained = engine.explain_score(text, at=at)
    assert explained.token == answer["token"]
    np.testing.assert_allclose(explained.contributions, answer["contributions"], atol=1e-5)
