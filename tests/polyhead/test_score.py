"""`polyhead rerank`, `similar` and `classify`: what the engine answers, as tables and as JSON lines."""

import io
import json
from pathlib import Path

import pytest

from polyhead import Engine
from polyhead.cli import main
from tests.task_artifacts import TaskArtifact

QUERY = "a 1 b"
DOCUMENTS = ["9 b c", "a 1", "c"]


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("key,text\n" + "".join(f"k{place},{text}\n" for place, text in enumerate(DOCUMENTS)))
    return Path("in.csv")


@pytest.mark.parametrize("kind", ["embedder", "reranker"])
def test_documents_come_best_first(
    kind: str, table: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    made: TaskArtifact = request.getfixturevalue(kind)
    with Engine.load(made.artifact, workers=1) as engine:
        ranked = engine.rerank(QUERY, DOCUMENTS)
    model = ["--model", str(made.artifact)]
    assert main(["rerank", QUERY, "--input", str(table), "--id", "key", "--json", *model]) == 0
    found = [json.loads(line) for line in lines_of(capsys)]
    assert [(one["index"], one["id"], one["text"]) for one in found] == [
        (one.index, f"k{one.index}", one.document) for one in ranked
    ]
    assert [one["score"] for one in found] == pytest.approx([one.score for one in ranked])
    assert main(["rerank", QUERY, *DOCUMENTS, "--top", "1", *model]) == 0
    assert lines_of(capsys) == [f"{ranked[0].score:8.4f}  {ranked[0].document}"]


def test_similar_keeps_the_order_and_reads_a_pipe(
    embedder: TaskArtifact, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(DOCUMENTS).encode())))
    assert main(["similar", QUERY, "-", "--json", "--model", str(embedder.artifact)]) == 0
    found = [json.loads(line) for line in lines_of(capsys)]
    with Engine.load(embedder.artifact, workers=1) as engine:
        assert [one["score"] for one in found] == pytest.approx(engine.score(QUERY, DOCUMENTS).tolist())
    assert [one["text"] for one in found] == DOCUMENTS


def test_labels_of_a_classifier_and_labels_of_ones_own(
    classifier: TaskArtifact, embedder: TaskArtifact, capsys: pytest.CaptureFixture[str]
) -> None:
    with Engine.load(classifier.artifact, workers=1) as engine:
        expected = engine.classify(DOCUMENTS)
    assert main(["classify", *DOCUMENTS, "--json", "--model", str(classifier.artifact)]) == 0
    found = [json.loads(line) for line in lines_of(capsys)]
    for line, text, labels in zip(found, DOCUMENTS, expected, strict=True):
        assert (line["text"], [one["label"] for one in line["labels"]]) == (text, [one["label"] for one in labels])
    assert main(["classify", "a", "--label", "b", "--label", "9", "--top", "1", "--model", str(embedder.artifact)]) == 0
    (line,) = lines_of(capsys)
    assert line.split()[1] in {"b", "9"}
    assert main(["classify", "a", "--model", str(embedder.artifact)]) == 1
    assert "only a classifier has labels of whole texts" in capsys.readouterr().err


def test_no_texts_are_a_wrong_command_line(embedder: TaskArtifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rerank", "q", "a", "--input", "x.txt", "--model", str(embedder.artifact)]) == 2
    assert "not both" in capsys.readouterr().err
