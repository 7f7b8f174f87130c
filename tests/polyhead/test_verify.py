"""`polyhead verify`: a whole artifact is said to be so, any other is one line and exit code 1."""

import shutil
from pathlib import Path

import pytest

from model.artifact import GRAPH, TOKENIZER
from polyhead.cli import main
from tests.service.fake_engine import write_fake_artifact
from tests.task_artifacts import TaskArtifact


def test_a_whole_artifact(embedder: TaskArtifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(embedder.artifact)]) == 0
    assert capsys.readouterr().out == f"{embedder.artifact}: 3 files as the manifest says, the graph loads\n"


@pytest.mark.parametrize("name", [GRAPH, TOKENIZER])
def test_one_other_byte(name: str, embedder: TaskArtifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = Path(shutil.copytree(embedder.artifact, tmp_path / "changed"))
    content = bytearray((directory / name).read_bytes())
    content[len(content) // 2] ^= 1
    (directory / name).write_bytes(content)
    assert main(["verify", str(directory)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"polyhead verify: {directory / name} has SHA-256 ")
    assert printed.count("\n") == 1


def test_a_graph_that_does_not_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_fake_artifact(tmp_path / "fake")  # its hashes are right, its graph is none
    assert main(["verify", str(directory)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"polyhead verify: {directory / GRAPH}")
    assert printed.count("\n") == 1
