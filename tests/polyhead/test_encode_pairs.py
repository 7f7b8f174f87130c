"""`polyhead encode --pairs`: two texts together, from arguments and files, by a randomly initialised cross-encoder."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from polyhead import Engine
from tests.polyhead.conftest import Run
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
