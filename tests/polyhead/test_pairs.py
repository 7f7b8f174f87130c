"""Commands that read two texts or rank several: what the engine answers, as tables, as JSON and as files."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from polyhead import Engine
from tests.command import Run
from tests.task_artifacts import TaskArtifact

ROWS = [("the cat", "a dog"), ("a cat", "the cat sat on the mat."), ("one", "two")]


@pytest.fixture(scope="module")
def model(reranker: TaskArtifact) -> Iterator[Engine]:
    with Engine.load(reranker.artifact) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(reranker: TaskArtifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYHEAD_MODEL", str(reranker.artifact))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("pairs.txt", "".join(f"{first}\t{second}\n" for first, second in ROWS), []),
        ("pairs.jsonl", "".join(json.dumps({"text": a, "text_pair": b}) + "\n" for a, b in ROWS), []),
        ("q-d.jsonl", "".join(json.dumps({"q": a, "d": b}) + "\n" for a, b in ROWS), ["--field=q", "--pair-field=d"]),
    ],
)
def test_pairs_are_read_together(model: Engine, name: str, content: str, options: list[str], run: Run) -> None:
    Path(name).write_text(content)
    lines = [json.loads(line) for line in run("encode", "--pairs", "--input", name, *options).splitlines()]
    scores = model.encode(pairs=ROWS).scores[:, 0]
    for line, row, score in zip(lines, ROWS, scores, strict=True):
        assert (line["text"], line["text_pair"]) == row
        assert line["scores"]["LABEL_0"] == pytest.approx(score, abs=1e-6)


def test_pairs_of_the_command_line_become_parquet(model: Engine, run: Run) -> None:
    run("encode", "--pairs", *[text for row in ROWS for text in row], "--output", "out.parquet")
    table = parquet.read_table("out.parquet")
    columns = table["text"].to_pylist(), table["text_pair"].to_pylist()
    assert list(zip(*columns, strict=True)) == ROWS
    np.testing.assert_allclose(table["scores"].to_pylist(), model.encode(pairs=ROWS).scores, atol=1e-6)
    run("encode", "--pairs", "--input", "out.parquet", "--output", "again.npy")
    np.testing.assert_allclose(np.load("again.npy"), table["scores"].to_pylist(), atol=1e-6)


@pytest.mark.parametrize(
    ("content", "given", "code", "message"),
    [
        ("one\ttwo\nthree\n", "--input pairs.txt", 1, "line 2: expected two texts with a tab between them, got 1"),
        ("one\ttwo\tthree\n", "--input pairs.txt", 1, "line 1: expected two texts with a tab between them, got 3"),
        ("", "one two three", 2, "--pairs: 3 texts are no pairs: give two for each"),
        ("", "one two --model {embedder}", 1, "reads one text at a time"),
    ],
)
def test_what_is_no_pair_is_said(
    content: str, given: str, code: int, message: str, embedder: TaskArtifact, run: Run
) -> None:
    Path("pairs.txt").write_text(content)
    assert message in run("encode", "--pairs", *given.format(embedder=embedder.artifact).split(), code=code)


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
    head, *rows = run(*command).splitlines()
    with Engine.load(embedder.artifact) as engine:
        explained = engine.explain(A, B, through="network")
    pairs = len(explained.a.tokens) * len(explained.b.tokens)
    start = f"similarity {explained.similarity:.4f} = sum over {pairs} pairs of tokens and the biases, the largest:"
    assert head == start
    assert len(rows) == explained.contributions.size  # so no others are left
    assert {row.split()[-2:][0] for row in rows} == {*explained.a.tokens, "biases"}
    assert sum(float(row.split()[0]) for row in rows) == pytest.approx(explained.similarity, abs=5e-3)


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


CLASSIFIER = "drawn compares no vectors of two texts: ask for --through network"


@pytest.mark.parametrize(
    ("kind", "given", "code", "message"),
    [
        ("embedder", [A], 1, "^polyhead explain: drawn compares two texts: give the second one too\n$"),
        ("reranker", [A], 1, f"^polyhead explain: {CLASSIFIER}\n$"),
        ("reranker", [A, B], 1, f"^polyhead explain: {CLASSIFIER}\n$"),
        ("embedder", [A, B, "--top", "0"], 2, "Invalid value for '--top'"),
        ("embedder", ["cat " * 600, B], 0, "^polyhead explain: 1 of 2 texts were cut"),
    ],
)
def test_what_cannot_be_explained_or_is_cut_is_said(
    kind: str, given: list[str], code: int, message: str, request: pytest.FixtureRequest, run: Run
) -> None:
    run("explain", *given, "--model", request.getfixturevalue(kind).artifact, code=code)
    assert re.search(message, run.said)


QUERY = "a 1 b"
DOCUMENTS = ["9 b c", "a 1", "c"]


@pytest.mark.parametrize("kind", ["embedder", "reranker"])
def test_documents_come_best_first(kind: str, request: pytest.FixtureRequest, run: Run) -> None:
    Path("in.csv").write_text("key,text\n" + "".join(f"k{place},{text}\n" for place, text in enumerate(DOCUMENTS)))
    made: TaskArtifact = request.getfixturevalue(kind)
    with Engine.load(made.artifact, workers=1) as engine:
        ranked = engine.rerank(QUERY, DOCUMENTS)
    model = ["--model", str(made.artifact)]
    printed = run("rerank", QUERY, "--input", "in.csv", "--id", "key", "--json", *model)
    found = [json.loads(line) for line in printed.splitlines()]
    assert [(one["index"], one["id"], one["text"]) for one in found] == [
        (one.index, f"k{one.index}", one.document) for one in ranked
    ]
    assert [one["score"] for one in found] == pytest.approx([one.score for one in ranked])
    assert run("rerank", QUERY, *DOCUMENTS, "--top", "1", *model) == f"{ranked[0].score:8.4f}  {ranked[0].document}\n"


def test_similar_keeps_the_order_and_reads_a_pipe(
    embedder: TaskArtifact, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(DOCUMENTS).encode())))
    printed = run("similar", QUERY, "-", "--json", "--model", embedder.artifact)
    found = [json.loads(line) for line in printed.splitlines()]
    with Engine.load(embedder.artifact, workers=1) as engine:
        assert [one["score"] for one in found] == pytest.approx(engine.score(QUERY, DOCUMENTS).tolist())
    assert [one["text"] for one in found] == DOCUMENTS


def test_labels_of_a_classifier_and_labels_of_ones_own(
    classifier: TaskArtifact, embedder: TaskArtifact, run: Run
) -> None:
    with Engine.load(classifier.artifact, workers=1) as engine:
        expected = engine.classify(DOCUMENTS)
    printed = run("classify", *DOCUMENTS, "--json", "--model", classifier.artifact)
    found = [json.loads(line) for line in printed.splitlines()]
    for line, text, labels in zip(found, DOCUMENTS, expected, strict=True):
        assert (line["text"], [one["label"] for one in line["labels"]]) == (text, [one["label"] for one in labels])
    model = ["--model", embedder.artifact]
    (line,) = run("classify", "a", "--label", "b", "--label", "9", "--top", "1", *model).splitlines()
    assert line.split()[1] in {"b", "9"}
    assert "only a classifier has labels of whole texts; labels of your own are given by --label" in run(
        "classify", "a", *model, code=1
    )
