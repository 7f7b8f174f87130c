"""`polyhead explain`: the table and the JSON hold what the engine answers, and errors is one line."""

import json
import re
from typing import Any

import numpy as np
import pytest

from polyhead import Engine
from tests.polyhead.conftest import Run
from tests.task_artifacts import TaskArtifact

A, B = "a cat sat on the mat", "the dog"


def test_the_table_adds_up_to_the_similarity(embedder: TaskArtifact, run: Run) -> None:
    with Engine.load(embedder.artifact) as engine:
        explained = engine.explain(A, B)
        left, right = np.asarray(engine.encode([A, B], normalize=True).embeddings)
    head, *rows, rest = run("explain", A, B, "--top", "3", "--model", embedder.artifact).splitlines()
    assert head.startswith(f"similarity {left @ right:.4f} = sum over {explained.contributions.size} pairs")
    largest = np.sort(explained.contributions, axis=None)[::-1][:3]
    np.testing.assert_allclose([float(row.split()[0]) for row in rows], largest, atol=6e-5)
    assert sum(float(row.split()[0]) for row in (*rows, rest)) == pytest.approx(float(left @ right), abs=3e-4)
    row, column = np.unravel_index(explained.contributions.argmax(), explained.contributions.shape)
    assert rows[0].split()[-2:] == [explained.a.tokens[row], explained.b.tokens[column]]


def test_json_holds_every_pair(embedder: TaskArtifact, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("POLYHEAD_MODEL", str(embedder.artifact))
    answer = json.loads(run("explain", A, B, "--json"))
    assert np.sum(answer["contributions"]) == pytest.approx(answer["similarity"], abs=1e-5)
    assert np.shape(answer["contributions"]) == (len(answer["a"]["tokens"]), len(answer["b"]["tokens"]))
    assert sum(answer["a"]["saliency"]) == pytest.approx(1, abs=1e-5)
    assert answer["model"] == "drawn"
    assert answer["usage"] == {"tokens": sum(np.shape(answer["contributions"]))}


def test_through_the_network_the_biases_have_terms(embedder: TaskArtifact, run: Run) -> None:
    command = ["explain", A, B, "--through", "network", "--top", "1000", "--model", embedder.artifact]
    head, *rows, rest = run(*command).splitlines()
    with Engine.load(embedder.artifact) as engine:
        explained = engine.explain(A, B, through="network")
    assert head.startswith(f"similarity {explained.similarity:.4f} = sum over {len(rows)} pairs of tokens")
    assert {row.split()[-2:][0] for row in rows} == {*explained.a.tokens, "biases"}
    assert sum(float(row.split()[0]) for row in (*rows, rest)) == pytest.approx(explained.similarity, abs=5e-3)


@pytest.mark.parametrize(
    ("kind", "texts", "options"),
    [("reranker", [A, B], {}), ("reranker", [A], {}), ("token_classifier", [A], {"at": 2})],
)
def test_a_logit_is_explained_by_its_tokens(
    request: pytest.FixtureRequest, run: Run, kind: str, texts: list[str], options: dict[str, Any]
) -> None:
    artifact: TaskArtifact = request.getfixturevalue(kind)
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = ["explain", *texts, *flags, "--through", "network", "--model", str(artifact.artifact)]
    with Engine.load(artifact.artifact) as engine:
        explained = engine.explain_score(*texts, **options)
    best = int(explained.logits.argmax())
    terms = explained.contributions[best]
    head, *rows, rest = run(*command, "--top", "2").splitlines()
    assert head.startswith(f"logit of {explained.labels[best]} {explained.logits[best]:.4f} = sum over")
    largest = terms[np.argsort(-np.abs(terms), kind="stable")[:2]]
    np.testing.assert_allclose([float(row.split()[0]) for row in rows], largest, atol=6e-5)
    assert sum(float(row.split()[0]) for row in (*rows, rest)) == pytest.approx(terms.sum(), abs=3e-4)
    answer = json.loads(run(*command, "--json"))
    np.testing.assert_allclose(np.sum(answer["contributions"], axis=1), answer["logits"], atol=1e-4)


CLASSIFIER = 'drawn is for classification: only the similarity of two embeddings.*ask for through "network"'


@pytest.mark.parametrize(
    ("kind", "given", "code", "message"),
    [
        ("embedder", [A], 1, "^polyhead explain: drawn compares two texts: give the second one too\n$"),
        ("reranker", [A], 1, f"^polyhead explain: {CLASSIFIER}[^\n]*\n$"),
        ("reranker", [A, B], 1, f"^polyhead explain: {CLASSIFIER}[^\n]*\n$"),
        ("embedder", [A, B, "--top", "0"], 2, "Invalid value for '--top'"),
        ("embedder", ["cat " * 600, B], 0, "^polyhead explain: 1 of 2 texts were cut"),
    ],
)
def test_what_cannot_be_explained_or_is_cut_is_said(
    kind: str, given: list[str], code: int, message: str, request: pytest.FixtureRequest, run: Run
) -> None:
    run("explain", *given, "--model", request.getfixturevalue(kind).artifact, code=code)
    assert re.search(message, run.said)
