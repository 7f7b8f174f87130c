"""Zero-shot labels: as the pipeline of `transformers` ranks them, by cosines, and the requests refused."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from model.artifact import read_manifest
from polyhead import Engine
from service.answers.scores import zero_shot_labels
from service.errors import TooLarge
from service.requests.schemas import EncodeRequest
from service.requests.zero_shot import ZeroShotPlan, ZeroShotRequest
from tests.service.routes.conftest import Client, post
from tests.task_artifacts import LONGEST, TaskArtifact

TEXTS = ["the cats sat on the mats.", "lower newest wider: abc123 café!", "the cat sat " * LONGEST]
LABELS = ["cats", "the weather, or not", "wider"]


@pytest.fixture(scope="module")
def pipeline(classifier: TaskArtifact) -> Any:
    from transformers import pipeline  # noqa: PLC0415 - seconds to import

    return pipeline("zero-shot-classification", str(classifier.folder), device="cpu")


@pytest.fixture(scope="module")
def engine(classifier: TaskArtifact) -> Iterator[Engine]:
    with Engine.load(classifier.artifact) as loaded:
        yield loaded


@pytest.mark.parametrize(("labels", "multi_label"), [(LABELS, False), (LABELS, True), (LABELS[:1], False)])
def test_labels_are_ranked_as_by_the_pipeline(
    client: Client, classifier: TaskArtifact, pipeline: Any, engine: Engine, labels: list[str], *, multi_label: bool
) -> None:
    options: Any = {"hypothesis_template": "on the {} mats.", "multi_label": multi_label}
    answer = post(client(classifier.artifact), "/zero-shot", inputs=TEXTS, candidate_labels=labels, **options)
    from_python = engine.zero_shot(iter(TEXTS), labels, **options)
    assert engine.zero_shot([], labels, **options) == []
    assert answer["method"] == "entailment"
    for text, found, own in zip(TEXTS, answer["results"], from_python, strict=True):
        expected = pipeline(text, labels, **options)
        assert found["labels"] == own[0] == expected["labels"]
        np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-5)
        np.testing.assert_allclose(found["scores"], own[1], atol=1e-6)


@pytest.mark.parametrize(("entailment", "contradiction"), [(0, 2), (1, 0), (2, 0)])
def test_a_label_by_itself_is_judged_against_contradiction(entailment: int, contradiction: int) -> None:
    logits = np.array([[1, 2, 4]], dtype=np.float32)
    plan = ZeroShotPlan(["a"], ["b"], EncodeRequest(), "entailment", entailment)
    ((_, found),) = zero_shot_labels(plan, logits)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(logits[:, contradiction] - logits[:, entailment])), rtol=1e-6)


def test_an_embedder_ranks_by_cosines(client: Client, embedder: TaskArtifact) -> None:
    asked = client(embedder.artifact)
    answer = asked.post("/zero-shot", json={"inputs": TEXTS[0], "candidate_labels": "cats, wider , a"}).json()
    vectors = np.array(asked.post("/encode", json={"inputs": [TEXTS[0], "cats", "wider", "a"]}).json()["embeddings"])
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
