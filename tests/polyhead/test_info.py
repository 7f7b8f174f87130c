"""`polyhead info` and `polyhead verify`: the manifest in words and as JSON; any but a whole artifact is one line."""

import json
import shutil
from pathlib import Path

import pytest

from model.artifact import GRAPH, TOKENIZER, Manifest, read_manifest
from polyhead.cli import main
from tests.service.fake_engine import write_fake_artifact
from tests.task_artifacts import TaskArtifact


def test_it_says_what_an_artifact_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(write_fake_artifact(tmp_path / "fake"))]) == 0
    lines = dict(line.split(":", 1) for line in capsys.readouterr().out.splitlines())
    assert {name: value.strip() for name, value in lines.items() if name != "files"} == {
        "model": "tests/fake",
        "source": "tests/fake",
        "task": "embedding",
        "output": "8 numbers",
        "network": "3 layers, 2, 3, 0 heads, hidden size 8",
        "reads": "up to 16 tokens",
        "engine": "onnxruntime",
        "precision": "fp32",
    }
    assert lines["files"].strip().startswith("explain.onnx, model.onnx, tokenizer.json (")


def test_it_names_the_labels_of_a_classifier(classifier: TaskArtifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(classifier.artifact)]) == 0
    printed = capsys.readouterr().out
    assert "task:       classification" in printed
    assert "labels:     contradiction, entailment, neutral\n" in printed
    assert "2 layers, 4 heads each, hidden size 32" in printed


def test_json_is_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = write_fake_artifact(tmp_path / "fake")
    assert main(["info", "--json", "--model", str(artifact)]) == 0
    assert Manifest.from_dict(json.loads(capsys.readouterr().out)) == read_manifest(artifact)


@pytest.mark.parametrize("command", ["info", "verify"])
def test_no_such_folder_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(tmp_path / "nothing")]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"polyhead {command}: {tmp_path / 'nothing'} holds no manifest.json: make an artifact")
    assert printed.count("\n") == 1


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
