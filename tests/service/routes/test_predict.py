"""Labels of texts, of their tokens and of the caller, over HTTP and from Python, as pipelines of transformers do it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.artifact import read_manifest
from service.answers.scores import zero_shot_labels
from service.context import RequestContext
from service.errors import Invalid, TooLarge
from service.requests.explain import ExplainedScores
from service.requests.schemas import Aggregation, EncodeRequest
from service.requests.zero_shot import ZeroShotPlan, ZeroShotRequest
from service.routes.predict import ClassifyAnswer
from tests.service.conftest import EngineOf
from tests.service.routes.conftest import Client, post, serving
from tests.task_artifacts import LONGEST, TaskArtifact

TEXTS = ["the cats sat on the mats.", "lower newest wider: abc123 naïve café!", "a", ""]
LONG = "the cats sat on the mats, lower newest wider. " * 12


@cache
def pipeline(task: str, folder: Path, **options: Any) -> Any:
    from transformers import pipeline as load  # noqa: PLC0415 - seconds to import

    return load(task, str(folder), device="cpu", **options)


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [{**entity, "score": None} for entity in found] == [{**entity, "score": None} for entity in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["score"] == pytest.approx(float(other["score"]), abs=1e-5)


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_entities_are_those_of_the_pipeline(
    client: Client, engine_of: EngineOf, token_classifier: TaskArtifact, aggregation: Aggregation
) -> None:
    asked, original = client(token_classifier.artifact), pipeline("token-classification", token_classifier.folder)
    expected = [original(text, aggregation_strategy=aggregation, ignore_labels=["B-LOC"]) for text in TEXTS]
    assert sum(map(len, expected)) >= 4
    found = post(asked, "/predict", inputs=TEXTS, level="tokens", aggregation=aggregation, ignore_labels=["B-LOC"])
    parameters = {"aggregation_strategy": aggregation, "ignore_labels": ["B-LOC"]}
    theirs = post(asked, "/", inputs=TEXTS[0], parameters=parameters)
    engine = engine_of(token_classifier.artifact)
    own = engine.entities(TEXTS, aggregation=aggregation, ignore_labels=["B-LOC"])
    with pytest.raises(Invalid, match="^colour: no such field"):
        engine.entities(TEXTS, colour=1)  # type: ignore[call-arg]
    for one, other in zip([*found, theirs, *own], [*expected, expected[0], *expected], strict=True):
        same(one, other)


def test_a_long_text_is_read_in_windows_joined(client: Client, token_classifier: TaskArtifact) -> None:
    import torch  # noqa: PLC0415 - seconds to import

    asked, original = client(token_classifier.artifact), pipeline("token-classification", token_classifier.folder)
    wanted = {"overlap": 30, "ignore_labels": []}
    answer = post(asked, "/encode", inputs=LONG, long_texts="windows", entities=wanted)
    (whole,) = post(asked, "/encode", inputs=LONG, long_texts="windows")["scores"]
    found = post(asked, "/predict", inputs=LONG, overlap=30, ignore_labels=[])
    same(found, answer["entities"][0])
    tokens = original.tokenizer(LONG, truncation=False, verbose=False)["input_ids"]
    assert len(whole) == len(tokens) > 2 * LONGEST
    assert answer["items"][0]["windows"] == -(-(len(tokens) - 2 - 30) // (LONGEST - 2 - 30))
    first = torch.tensor([[*tokens[: LONGEST - 1], tokens[-1]]])
    with torch.inference_mode():
        logits = original.model(first).logits[0].softmax(dim=-1)
    torch.testing.assert_close(torch.tensor(whole[:40]), logits[:40], atol=1e-5, rtol=0)
    cut = post(asked, "/predict", inputs=LONG, truncate=True, ignore_labels=[])
    assert cut[-1]["end"] < found[-1]["end"] == len(LONG.rstrip())
    as_the_client_sends = {"truncate": True, "ignore_labels": [], "parameters": {"stride": 10}}
    assert cut == post(asked, "/predict", inputs=LONG, **as_the_client_sends)
    assert asked.post("/predict", json={"inputs": LONG, "truncate": False}).status_code == 413


def test_a_words_label_is_explained_by_the_texts_tokens(
    client: Client, engine_of: EngineOf, token_classifier: TaskArtifact
) -> None:
    asked, text, at = client(token_classifier.artifact), TEXTS[0], TEXTS[0].index("sat") + 1
    encoded = post(asked, "/encode", inputs=text, attention={"layers": "all"})
    (scores,), (attention,) = encoded["scores"], encoded["attention"]
    assert encoded["labels"] == ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    assert np.shape(scores) == (len(attention["tokens"]), 5)
    answer = post(asked, "/explain", a=text, at=at, through="network")
    ExplainedScores.model_validate_json(json.dumps(answer))
    start, end = attention["offsets"][answer["token"]]
    assert start <= at < end
    logits = np.array(answer["logits"])
    np.testing.assert_allclose(np.exp(logits) / np.exp(logits).sum(), scores[answer["token"]], atol=1e-5)
    np.testing.assert_allclose(np.sum(answer["contributions"], axis=1), logits, atol=1e-5)
    explained = engine_of(token_classifier.artifact).explain_score(text, at=at)
    assert explained.token == answer["token"]
    np.testing.assert_allclose(explained.contributions, answer["contributions"], atol=1e-5)
    by_word = post(asked, "/explain", a=text, at=at, through="network", level="word")
    assert by_word["text"]["words"][by_word["token"]] == "sat"
    assert by_word["token"] < answer["token"], "a word before it is of two tokens"


JUDGED = ["the cats sat on the mats.", "lower newest wider: abc123 café!", "the cat sat " * LONGEST]
LABELS = ["cats", "the weather, or not", "wider"]


@pytest.mark.parametrize(("labels", "multi_label"), [(LABELS, False), (LABELS, True), (LABELS[:1], False)])
def test_labels_are_ranked_as_by_the_pipeline(
    client: Client, engine_of: EngineOf, classifier: TaskArtifact, labels: list[str], *, multi_label: bool
) -> None:
    zero_shot, original = (
        engine_of(classifier.artifact).zero_shot,
        pipeline("zero-shot-classification", classifier.folder),
    )
    options: Any = {"hypothesis_template": "on the {} mats.", "multi_label": multi_label}
    answer = post(client(classifier.artifact), "/zero-shot", inputs=JUDGED, candidate_labels=labels, **options)
    from_python = zero_shot(iter(JUDGED), labels, **options)
    assert zero_shot([], labels, **options) == []
    assert answer["method"] == "entailment"
    for text, found, own in zip(JUDGED, answer["results"], from_python, strict=True):
        expected = original(text, labels, **options)
        assert found["labels"] == own[0] == expected["labels"]
        np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-5)
        np.testing.assert_allclose(found["scores"], own[1], atol=1e-6)


@pytest.mark.parametrize(("entailment", "contradiction"), [(0, 2), (1, 0), (2, 0)])
def test_a_label_by_itself_is_judged_against_contradiction(entailment: int, contradiction: int) -> None:
    logits = np.array([[1, 2, 4]], dtype=np.float32)
    plan = ZeroShotPlan(["a"], ["b"], EncodeRequest(), entailment, multi_label=False)
    ((_, found),) = zero_shot_labels(plan, logits)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(logits[:, contradiction] - logits[:, entailment])), rtol=1e-6)


def test_an_embedder_ranks_by_cosines(client: Client, embedder: TaskArtifact) -> None:
    asked = client(embedder.artifact)
    answer = post(asked, "/zero-shot", inputs=JUDGED[0], candidate_labels="cats, wider , a")
    vectors = np.array(post(asked, "/encode", inputs=[JUDGED[0], "cats", "wider", "a"])["embeddings"])
    cosines = vectors[1:] @ vectors[0]
    (found,) = answer["results"]
    assert answer["method"] == "cosine"
    assert found["labels"] == [["cats", "wider", "a"][at] for at in np.argsort(-cosines)]
    np.testing.assert_allclose(found["scores"], np.sort(cosines)[::-1], atol=1e-6)


@pytest.mark.parametrize("labels", ["a, b", ["a", "b"]])
def test_as_many_texts_and_labels_as_are_allowed_are_taken(embedder: TaskArtifact, labels: str | list[str]) -> None:
    request, manifest = ZeroShotRequest(inputs=["c", "d"], candidate_labels=labels), read_manifest(embedder.artifact)
    assert request.plan(manifest, 4).labels == ["a", "b"]
    with pytest.raises(TooLarge, match="2 labels and 2 texts are 4 inputs to read, at most 3"):
        request.plan(manifest, 3)


@pytest.mark.parametrize(
    ("labels", "size"),
    [([f"{'a' * 900}{n}" for n in range(900)], 855_790_000), (["\1" * 20_000], 120_048_000)],
    ids=["1 MB of them", "written as six characters each"],
)
def test_every_text_has_every_label_and_that_is_bounded(
    client: Client, embedder: TaskArtifact, labels: list[str], size: int
) -> None:
    body = {"inputs": ["the cat"] * 1000, "candidate_labels": labels}
    response = client(embedder.artifact).post("/zero-shot", json=body)
    assert response.status_code == 413
    assert f"the answer would hold {size} bytes of labels and scores, at most 67108864 are allowed" in response.text


def test_predict_takes_texts_and_pairs_and_classify_texts(
    client: Client, engine_of: EngineOf, classifier: TaskArtifact
) -> None:
    asked, classify = client(classifier.artifact), engine_of(classifier.artifact).classify
    original = pipeline("text-classification", classifier.folder, top_k=None)
    one, pair = post(asked, "/predict", inputs="the cat"), post(asked, "/predict", inputs=["the cat", "a dog"])
    own = classify("the cat") + classify(pairs=[("the cat", "a dog")])
    expected = original(["the cat", {"text": "the cat", "text_pair": "a dog"}])
    for found, wanted in zip([one, pair, *own], [*expected, *expected], strict=True):
        same(found, wanted)
    for name, value in (("output", "tokens"), ("attention", {})):
        options: Any = {name: value}
        with pytest.raises(Invalid, match=f"^{name}: labels alone are answered here"):
            classify("the cat", **options)
    for function in ("none", "sigmoid", "softmax"):  # as huggingface_hub asks for one
        (wanted,) = original(["the cat"], function_to_apply=function, top_k=2)
        (found,) = post(asked, "/predict", inputs="the cat", parameters={"function_to_apply": function, "top_k": 2})
        same(found, wanted)
    assert post(asked, "/predict", inputs=["the cat"]) == one
    assert post(asked, "/predict", inputs=[["the cat"], ["a dog"]])[0] == one
    assert post(asked, "/predict", inputs=[["the cat", "a dog"]]) == [pair]
    answer = post(asked, "/classify", input=["the cat", "a dog"], model="x")
    ClassifyAnswer.model_validate(answer)
    assert {"id", "created"} <= answer.keys()  # as Infinity answers
    assert (answer["object"], answer["data"][0], len(answer["data"])) == ("classify", one, 2)


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
