"""The graph for OpenVINO: made, compared with its encoder, refused where a branch stays."""

from pathlib import Path

import onnx_ir
import pytest
import torch

from export import openvino as openvino_export
from export.checkpoint import Checkpoint, read_checkpoint
from export.errors import ParityError, UnsupportedModel, VerificationError
from export.exporter import export_artifact
from export.graph import trace
from export.openvino import PlainSession, plain_graph, require_openvino, verify_plain_graph
from export.runtime import CUDA, Session
from export.sources import Folder
from model.artifact import EXPLAIN_GRAPH, GRAPH, PLAIN_GRAPH, Artifact
from model.encoder import Encoder
from tests.networks import draw_weights, vary
from tests.task_artifacts import TaskArtifact

pytest.importorskip("openvino")


@pytest.fixture(scope="module")
def checkpoint(embedder: TaskArtifact) -> Checkpoint:
    return read_checkpoint(Folder(embedder.folder, "drawn"))


@pytest.mark.skipif(CUDA in Session.available_providers(), reason="bf16 is CUDA's here")
def test_bf16_on_a_cpu_is_an_artifact_for_openvino(checkpoint: Checkpoint, tmp_path: Path) -> None:
    manifest = export_artifact(checkpoint, tmp_path / "made", precision="bf16", explains=False)
    found = manifest.parity["openvino"]
    assert (manifest.engine, manifest.precision) == ("openvino", "bf16")
    assert found["computed_in"] in {"bf16", "f32"}
    assert found["cases"] == manifest.parity["cases"]
    assert found["pooled"] < found["tolerance"]
    assert found["quality"]["cosine_mean"] > 0.998
    assert manifest.files.keys() >= {GRAPH, PLAIN_GRAPH}
    assert EXPLAIN_GRAPH not in manifest.files
    assert Artifact.open(tmp_path / "made").manifest == manifest
    assert not list(tmp_path.glob(".*"))


def test_a_graph_of_something_else_is_refused(embedder: TaskArtifact, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path, encoder = tmp_path / PLAIN_GRAPH, checkpoint.encoder
    onnx_ir.save(plain_graph(embedder.artifact / GRAPH, encoder.config), path)
    session = PlainSession(path, encoder.config, "fp32")
    found = verify_plain_graph(session, encoder)
    assert (found["computed_in"], found["tolerance"]) == ("f32", 1e-5)
    assert 0 < found["pooled"] < 1e-5
    changed = read_checkpoint(Folder(embedder.folder, "drawn")).encoder
    with torch.no_grad():
        next(changed.layers.parameters()).mul_(1.01)
    with pytest.raises(ParityError, match="pooled differs from the PyTorch encoder"):
        verify_plain_graph(session, changed)


def test_windows_of_long_texts_are_computed_without_a_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.attention.LONGEST_DENSE", 16)  # the grid has rows of up to 40 tokens
    rotary = {"positions": "none", "attention_positions": "rotary", "local_rope_theta": 100.0}
    encoder = draw_weights(Encoder(vary(num_heads=(4,), type_vocab_size=0, local_layers=(0,), window=3, **rotary)))
    onnx_ir.save(trace(encoder), tmp_path / GRAPH)
    onnx_ir.save(plain_graph(tmp_path / GRAPH, encoder.config), tmp_path / PLAIN_GRAPH)
    found = verify_plain_graph(PlainSession(tmp_path / PLAIN_GRAPH, encoder.config, "fp32"), encoder)
    assert found["longest"] == 40
    assert 0 < found["pooled"] < 1e-5


def test_a_branch_that_stays_is_refused(
    embedder: TaskArtifact, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_export, "BRANCHES", ("If", "Attention"))  # of which the first does not stay
    with pytest.raises(UnsupportedModel, match="OpenVINO computes branches wrongly, and Attention stays"):
        plain_graph(embedder.artifact / GRAPH, checkpoint.encoder.config)


def test_what_cannot_be_made_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedModel, match="takes --precision fp32 or bf16, not int8"):
        require_openvino("int8")
    monkeypatch.setattr(openvino_export, "is_installed", lambda: False)
    with pytest.raises(VerificationError, match=r"not installed: pip install 'polyhead\[openvino\]'"):
        require_openvino("bf16")
