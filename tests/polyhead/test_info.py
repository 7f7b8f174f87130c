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


def test_a_whole_artifact(embedder: TaskArtifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(embedder.artifact)]) == 0
    assert capsys.readouterr().out == f"{embedder.artifact}: 3 files as the manifest says, the graph loads\n"


@pytest.mark.parametrize(
    ("command", "changed", "message"),
    [
        ("info", "", "there is no folder {}: make an artifact"),
        ("verify", "none", "{} holds no manifest.json: make an artifact"),
        ("verify", GRAPH, f"{{}}/{GRAPH} has SHA-256 "),
        ("verify", TOKENIZER, f"{{}}/{TOKENIZER} has SHA-256 "),
        ("verify", "all", f"{{}}/{GRAPH}"),  # a fake one: its hashes are right, its graph is none
    ],
)
def test_any_but_a_whole_artifact_is_one_line(
    command: str, changed: str, message: str, embedder: TaskArtifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "artifact"
    if changed == "none":
        directory.mkdir()
    elif changed == "all":
        write_fake_artifact(directory)
    elif changed:
        shutil.copytree(embedder.artifact, directory)
        content = bytearray((directory / changed).read_bytes())
        content[len(content) // 2] ^= 1  # one bit
        (directory / changed).write_bytes(content)
    assert main([command, str(directory)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"polyhead {command}: {message.format(directory)}")
    assert printed.count("\n") == 1
