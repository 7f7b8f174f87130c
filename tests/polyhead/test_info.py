"""`polyhead info` and `polyhead verify`: the manifest in words and as JSON; any but a whole artifact is one line."""

import json
import shutil
from pathlib import Path

import pytest

from model.artifact import GRAPH, TOKENIZER, Manifest, read_manifest
from tests.polyhead.conftest import Run
from tests.service.fake_engine import write_fake_artifact
from tests.task_artifacts import TaskArtifact


def test_it_says_what_an_artifact_is(tmp_path: Path, run: Run) -> None:
    artifact = write_fake_artifact(tmp_path / "fake")
    lines = dict(line.split(":", 1) for line in run("info", artifact).splitlines())
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
    assert Manifest.from_dict(json.loads(run("info", "--json", "--model", artifact))) == read_manifest(artifact)


def test_it_names_the_labels_of_a_classifier(classifier: TaskArtifact, run: Run) -> None:
    printed = run("info", classifier.artifact)
    for said in (
        "task:       classification",
        "contradiction, entailment, neutral\n",
        "2 layers, 4 heads each, hidden",
    ):
        assert said in printed


def test_a_whole_artifact(embedder: TaskArtifact, run: Run) -> None:
    said = f"{embedder.artifact}: 3 files as the manifest says, the graph loads\n"
    assert run("verify", embedder.artifact) == said


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
    command: str, changed: str, message: str, embedder: TaskArtifact, tmp_path: Path, run: Run
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
    printed = run(command, directory, code=1)
    assert printed.startswith(f"polyhead {command}: {message.format(directory)}")
    assert printed.count("\n") == 1
