"""The graphs that are not the encoder's: `explain.onnx` against the decomposition, and the one for OpenVINO."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx_ir
import pytest
import torch

from export import openvino as openvino_export
from export.checkpoint import Checkpoint
from export.errors import ParityError, UnsupportedModel, VerificationError
from export.explain import LEAST_SHARED_BYTES, explain_inputs, share_weights, verify_explain_graph, write_explain_graph
from export.exporter import export_artifact, write_graph
from export.graph import trace
from export.openvino import PlainSession, plain_graph, require_openvino, verify_plain_graph
from export.runtime import CUDA, Session
from model.artifact import (
    EXPLAIN_GRAPH,
    GRAPH,
    INPUT_IDS,
    OWN_SHARES,
    PARTS,
    PLACE,
    PLAIN_GRAPH,
    SOURCES,
    TOKEN_TYPE_IDS,
    WHOLE,
    Artifact,
)
from model.config_parts import ClassificationSettings
from model.decomposition.decompose import decompose
from model.encoder import Encoder
from tests.family_models import read
from tests.networks import ONE_LAYER, draw_weights, vary
from tests.task_artifacts import TaskArtifact

MODERN: dict[str, Any] = {
    **dict.fromkeys(("pre_norm", "final_norm", "gated", "output_gate"), True),
    **dict.fromkeys(("activation", "value_activation"), "silu"),
    "norm": "rms_norm",
    "attention_positions": "rotary",
    "positions": "none",
    "local_layers": (1,),
    "window": 2,
    "value_residual": ((0.0, 1.0), (0.5, 0.5)),
    "pooling": "max",
    "task": "classification",
    "task_settings": ClassificationSettings(labels=("no", "yes"), dense_norm=True),
}
TOKEN_CLASSIFIER: dict[str, Any] = {
    "num_heads": (2, 0),
    "task": "token_classification",
    "task_settings": ClassificationSettings(labels=("O", "B", "I"), dense_activation=None),
}


@pytest.mark.parametrize("change", [MODERN, TOKEN_CLASSIFIER], ids=["modern", "tokens"])
def test_the_graph_gives_the_parts_of_the_decomposition(change: dict[str, Any], tmp_path: Path) -> None:
    encoder = draw_weights(Encoder(vary(**change)))
    figures = write_explain_graph(encoder, tmp_path)
    assert max(figures[name] for name in (PARTS, WHOLE, OWN_SHARES)) < 1e-5
    session, reference = Session(tmp_path / EXPLAIN_GRAPH), encoder.double().use("eager")
    inputs = explain_inputs(encoder.config, 11, 4, seed=5)
    found = session.run(inputs)
    ids, types, sources = (torch.from_numpy(inputs[name]) for name in (INPUT_IDS, TOKEN_TYPE_IDS, SOURCES))
    with torch.no_grad():
        place = torch.from_numpy(inputs[PLACE]) if PLACE in inputs else None
        expected = decompose(reference, ids, types, tokens=sources, place=place)
        whole = reference(ids, torch.tensor([11]), token_type_ids=types).task_output[0]
    if place is not None:
        whole = whole[int(place)]
    np.testing.assert_allclose(found[PARTS], expected.output, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(found[WHOLE], whole, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(found[OWN_SHARES], expected.own_shares, atol=1e-5)


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Path]:
    """A network whose matrices are large enough to be shared, and where its graphs are."""
    directory = tmp_path_factory.mktemp("graphs")
    encoder = draw_weights(Encoder(ONE_LAYER))
    write_graph(trace(encoder), directory)
    write_explain_graph(encoder, directory)
    return encoder, directory


def test_large_tensors_are_places_in_the_encoders_file(one_layer: tuple[Encoder, Path]) -> None:
    graph = onnx_ir.load(one_layer[1] / EXPLAIN_GRAPH)
    tensors = [value.const_value for value in graph.graph.initializers.values() if value.const_value is not None]
    large = [tensor for tensor in tensors if tensor.nbytes >= LEAST_SHARED_BYTES]
    assert len(large) >= 6  # every matrix of the layer
    for tensor in large:
        assert isinstance(tensor, onnx_ir.ExternalTensor)
        assert tensor.location == "model.onnx"


def test_a_graph_of_another_network_is_refused(one_layer: tuple[Encoder, Path]) -> None:
    encoder, directory = one_layer
    other = draw_weights(Encoder(encoder.config), seed=1)
    with pytest.raises(ParityError, match="parts differs from the PyTorch encoder"):
        verify_explain_graph(directory / EXPLAIN_GRAPH, other)


def test_weights_that_stand_nowhere_else_stay_in_the_graph(one_layer: tuple[Encoder, Path], tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"nothing of it")
    graph = onnx_ir.load(one_layer[1] / EXPLAIN_GRAPH)
    before = {name: value.const_value for name, value in graph.graph.initializers.items()}
    with patch("export.explain.LEAST_SHARED_BYTES", 1):
        assert share_weights(graph, [file]) == 0
    assert all(value.const_value is before[name] for name, value in graph.graph.initializers.items())


@pytest.fixture(scope="module")
def checkpoint(embedder: TaskArtifact) -> Checkpoint:
    pytest.importorskip("openvino")
    return read(embedder.folder)


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
    changed = read(embedder.folder).encoder
    with torch.no_grad():
        next(changed.layers.parameters()).mul_(1.01)
    with pytest.raises(ParityError, match="pooled differs from the PyTorch encoder"):
        verify_plain_graph(session, changed)


def test_windows_of_long_texts_are_computed_without_a_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
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
