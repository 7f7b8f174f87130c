"""`polyhead rerank`, `similar` and `classify`: what the engine answers, as tables and as JSON lines."""

import io
import json
from pathlib import Path

import pytest

from polyhead import Engine
from tests.polyhead.conftest import Run
from tests.task_artifacts import TaskArtifact

QUERY = "a 1 b"
DOCUMENTS = ["9 b c", "a 1", "c"]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("key,text\n" + "".join(f"k{place},{text}\n" for place, text in enumerate(DOCUMENTS)))
    return Path("in.csv")


@pytest.mark.parametrize("kind", ["embedder", "reranker"])
def test_documents_come_best_first(kind: str, table: Path, request: pytest.FixtureRequest, run: Run) -> None:
    made: TaskArtifact = request.getfixturevalue(kind)
    with Engine.load(made.artifact, workers=1) as engine:
        ranked = engine.rerank(QUERY, DOCUMENTS)
    model = ["--model", str(made.artifact)]
    printed = run("rerank", QUERY, "--input", table, "--id", "key", "--json", *model)
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
    assert "only a classifier has labels of whole texts" in run("classify", "a", *model, code=1)
