import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import onnx_ir
import pytest

import export.exporter
from export.checkpoint import Checkpoint
from export.errors import OutputExists, ParityError
from export.exporter import export_artifact, require_free
from model.artifact import EXPLAIN_GRAPH, GRAPH, GRAPH_WEIGHTS, MANIFEST, TOKENIZER, Artifact
from model.encoder import Encoder
from tests.networks import ONE_LAYER, draw_weights
from tests.task_artifacts import quick_export


@pytest.fixture
def traced_before(tiny_graph: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Exports of the tiny network take a graph that was traced before, and verify one batch: the tests look further."""
    monkeypatch.setattr(export.exporter, "trace", lambda _: onnx_ir.load(tiny_graph))
    with quick_export():
        yield


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """An artifact that has the name already."""
    output = tmp_path / "tiny"
    output.mkdir()
    (output / MANIFEST).write_text("{}")
    (output / "old").write_text("old")
    return output


def test_writes_an_artifact_that_opens(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "tiny"
    manifest = export_artifact(replace(tiny_checkpoint, encoder=draw_weights(Encoder(ONE_LAYER))), output)
    assert {path.name for path in output.iterdir()} == {GRAPH, EXPLAIN_GRAPH, TOKENIZER, MANIFEST}
    artifact = Artifact.open(output)
    assert artifact.manifest == manifest
    assert manifest.config == ONE_LAYER
    assert manifest.pruning is None
    assert manifest.fused_attention == {"ai.onnx.Attention": 1}
    assert manifest.parity["attentions"] < 1e-5
    assert manifest.parity["explain"]["parts"] < 1e-5
    assert manifest.versions["torch"].startswith("2.13.0")
    assert [path.name for path in output.parent.iterdir()] == ["tiny"]


@pytest.mark.usefixtures("traced_before")
def test_large_weights_stand_beside_the_graph(
    tiny_checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export.exporter, "EXTERNAL_WEIGHTS_BYTES", 1000)
    manifest = export_artifact(tiny_checkpoint, tmp_path / "tiny", explains=False)
    assert GRAPH_WEIGHTS in manifest.files
    assert manifest.files[GRAPH_WEIGHTS].size > manifest.files[GRAPH].size / 4


def test_refuses_an_output_that_exists(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(OutputExists, match="--force"):
        export_artifact(tiny_checkpoint, tmp_path)


@pytest.mark.usefixtures("traced_before")
def test_replaces_it_when_forced(tiny_checkpoint: Checkpoint, older: Path) -> None:
    export_artifact(tiny_checkpoint, older, force=True, explains=False)
    assert json.loads((older / MANIFEST).read_bytes())["model"] == "tiny"
    assert [path.name for path in older.parent.iterdir()] == ["tiny"]
    assert not (older / "old").exists()


def test_replaces_only_an_artifact_or_an_empty_directory(tmp_path: Path) -> None:
    require_free(tmp_path, force=True)
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years")
    (nowhere := tmp_path / "nowhere").symlink_to("nowhere")
    for output in (tmp_path, thesis, nowhere):
        with pytest.raises(OutputExists, match="is no artifact .*: name another directory"):
            require_free(output, force=True)


@pytest.mark.parametrize(("force", "name"), [(False, MANIFEST), (True, "thesis.txt")])
def test_what_gets_the_name_during_the_export_stays(
    tiny_checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool, name: str
) -> None:
    output = tmp_path / "tiny"

    def meanwhile(*_: Any, **__: Any) -> None:
        output.mkdir()
        (output / name).write_text("another's")

    monkeypatch.setattr(export.exporter, "_make", meanwhile)
    with pytest.raises(OutputExists):
        export_artifact(tiny_checkpoint, output, force=force)
    assert (output / name).read_text() == "another's"
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_place_that_cannot_be_written_to_is_said_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    require_free(tmp_path / "deep" / "output", force=False)
    with pytest.raises(PermissionError, match=f"{file} is no directory that can be written to"):
        require_free(file / "deep" / "output", force=False)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=f"{tmp_path} is no directory that can be written to"):
        require_free(tmp_path / "output", force=False)


@pytest.mark.usefixtures("traced_before")
@pytest.mark.parametrize(
    ("step", "failure"),
    [("export.exporter.verify", ParityError("no")), ("export.exporter.verify", KeyboardInterrupt()), (None, None)],
    ids=["failure", "interruption", "interruption while names change"],
)
def test_an_export_that_ends_early_leaves_the_old_artifact_and_nothing_else(
    tiny_checkpoint: Checkpoint, older: Path, monkeypatch: pytest.MonkeyPatch, step: str | None, failure: Any
) -> None:
    rename = Path.rename

    def interrupt(path: Path, target: Path) -> Path:
        if path.name == older.name and target == older:
            raise KeyboardInterrupt
        return rename(path, target)

    if step is None:
        monkeypatch.setattr(Path, "rename", interrupt)
    else:
        monkeypatch.setattr(step, Mock(side_effect=failure))
    with pytest.raises(type(failure) if failure else KeyboardInterrupt):
        export_artifact(tiny_checkpoint, older, force=True, explains=False)
    assert [path.name for path in older.parent.iterdir()] == ["tiny"]
    assert (older / "old").read_text() == "old"
