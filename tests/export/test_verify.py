import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export.checkpoint import Checkpoint
from export.errors import FusionError, ParityError, VerificationError
from export.graph import input_names, output_names, trace
from export.grid import grid
from export.precision import TOLERANCES
from export.runtime import Session
from export.verify import verify as verify_within
from model.config import EncoderConfig
from model.encoder import Encoder
from model.graph_names import ATTENTION_LAYERS, INPUT_IDS, LENGTHS, TOKEN_TYPE_IDS
from tests.networks import TINY, draw_weights


def verify(path: Path, encoder: Encoder) -> tuple[dict[str, int], dict[str, float]]:
    return verify_within(path, encoder, tolerance=TOLERANCES["fp32"])


def changed(graph: Path, folder: Path, change: Callable[[onnx_ir.Model], None]) -> Path:
    """A copy of a graph with something wrong in it."""
    model = onnx_ir.load(graph)
    change(model)
    path = folder / "model.onnx"
    onnx_ir.save(model, path)
    return path


@pytest.mark.parametrize(
    "change",
    [
        {},
        pytest.param({"type_vocab_size": 0}, marks=pytest.mark.slow),
        pytest.param({"pooling": "cls"}, marks=pytest.mark.slow),
        pytest.param({"pooling": "max"}, marks=pytest.mark.slow),
        {"pooling": "last", "activation": "gelu_tanh"},
        pytest.param({"activation": "relu", "num_heads": [32], "d_k": 1, "d_v": 1}, marks=pytest.mark.slow),
        pytest.param({"activation": "silu", "projection": {"size": 3}}, marks=pytest.mark.slow),
        {"projection": {"size": 3, "bias": False, "activation": "identity"}, "num_heads": [1], "d_k": 32},
    ],
)
def test_graphs_of_every_shape_verify(change: dict[str, object], tmp_path: Path) -> None:
    encoder = draw_weights(Encoder(EncoderConfig.from_dict({**TINY.to_dict(), **change})))
    onnx_ir.save(trace(encoder), tmp_path / "model.onnx")
    fused, parity = verify(tmp_path / "model.onnx", encoder)
    assert fused == {"ai.onnx.Attention": sum(heads > 0 for heads in encoder.config.num_heads)}
    assert parity["cases"] == len(list(grid(encoder.config)))
    assert 0 < parity["pooled"] < parity["tolerance"]


def test_the_graph_has_the_contracts_names_and_types(tiny_graph: Path) -> None:
    model = onnx_ir.load(tiny_graph)
    assert tuple(value.name for value in model.graph.inputs) == input_names(TINY)
    assert tuple(value.name for value in model.graph.outputs) == output_names(TINY)
    assert [str(value.dtype) for value in model.graph.inputs] == ["INT64", "INT64", "BOOL", "BOOL", "FLOAT", "INT64"]
    assert {str(value.dtype) for value in model.graph.outputs} == {"FLOAT"}
    assert model.opset_imports[""] == 24


def tokens(*rows: list[int]) -> dict[str, np.ndarray]:
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, values in enumerate(rows):
        ids[row, : len(values)] = values
    return {
        INPUT_IDS: ids,
        LENGTHS: np.array([len(row) for row in rows]),
        ATTENTION_LAYERS: np.ones(TINY.num_layers, np.bool_),
        TOKEN_TYPE_IDS: np.zeros_like(ids),
    }


@given(
    text=st.lists(st.integers(0, 47), min_size=1, max_size=40),
    mates=st.lists(st.lists(st.integers(0, 47), min_size=1, max_size=40), max_size=6),
    place=st.integers(0, 6),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_text_gives_the_same_bits_alone_and_in_any_batch(
    tiny_session: Session, text: list[int], mates: list[list[int]], place: int
) -> None:
    place = min(place, len(mates))
    alone = tiny_session.run(tokens(text))
    batch = tiny_session.run(tokens(*mates[:place], text, *mates[place:]))
    assert np.array_equal(batch["pooled"][place], alone["pooled"][0])
    for layer in range(TINY.num_layers):
        if TINY.num_heads[layer]:
            weights = batch[f"attentions.{layer}"][place, :, : len(text), : len(text)]
            assert np.array_equal(weights, alone[f"attentions.{layer}"][0])


@pytest.fixture(scope="module")
def tiny_session(tiny_graph: Path) -> Session:
    return Session(tiny_graph, threads=1)


def test_weights_come_only_from_the_layers_asked_for(tiny_session: Session) -> None:
    inputs = {**tokens([1, 2, 3], [4]), ATTENTION_LAYERS: np.array([False, True, False, False])}
    shapes = [tiny_session.run(inputs)[f"attentions.{layer}"].shape for layer in range(4)]
    assert shapes == [(0, 4, 0, 0), (2, 3, 3, 3), (0, 0, 0, 0), (0, 1, 0, 0)]


def test_a_row_without_tokens_is_finite_and_zero(tiny_session: Session) -> None:
    found = tiny_session.run({**tokens([1, 2, 3], [4, 5]), LENGTHS: np.array([3, 0])})
    assert (found["attentions.0"][1] == 0).all()
    assert (found["pooled"][1] == 0).all()


def test_refuses_a_graph_of_other_weights(tiny_checkpoint: Checkpoint, tiny_graph: Path) -> None:
    other = draw_weights(Encoder(TINY), seed=1)
    with pytest.raises(ParityError, match="pooled differs from the PyTorch encoder by .* allowed are 1e-05 and 1e-05"):
        verify(tiny_graph, other)
    verify(tiny_graph, tiny_checkpoint.encoder)


def test_refuses_a_slightly_wrong_weight(tiny_checkpoint: Checkpoint, tiny_graph: Path) -> None:
    encoder = tiny_checkpoint.encoder
    with torch.no_grad():
        encoder.get_parameter("layers.3.feed_forward.down.bias")[0] += 1e-3
    with pytest.raises(ParityError):
        verify(tiny_graph, encoder)


def test_refuses_attention_that_is_not_fused(tiny_checkpoint: Checkpoint, tiny_graph: Path, tmp_path: Path) -> None:
    def unfuse(model: onnx_ir.Model) -> None:
        """Replaces the first fused node by something that has its shape: its value input."""
        node = next(node for node in model.graph if node.op_type == "Attention")
        value = node.inputs[2]
        assert value is not None
        node.outputs[0].replace_all_uses_with(value)
        model.graph.remove(node, safe=True)

    with pytest.raises(FusionError, match="ONNX Runtime runs 2 fused attention nodes; expected 3"):
        verify(changed(tiny_graph, tmp_path, unfuse), tiny_checkpoint.encoder)


def test_refuses_other_names(tiny_checkpoint: Checkpoint, tiny_graph: Path, tmp_path: Path) -> None:
    def rename(model: onnx_ir.Model) -> None:
        model.graph.outputs[0].name = "vector"

    with pytest.raises(VerificationError, match="the graph's outputs are vector, .*; expected pooled, "):
        verify(changed(tiny_graph, tmp_path, rename), tiny_checkpoint.encoder)


def test_refuses_a_graph_that_does_not_load(tiny_checkpoint: Checkpoint, tiny_graph: Path, tmp_path: Path) -> None:
    def collide(model: onnx_ir.Model) -> None:
        model.graph.outputs[0].name = model.graph.outputs[1].name

    with pytest.raises(VerificationError, match="ONNX Runtime refuses the graph"):
        verify(changed(tiny_graph, tmp_path, collide), tiny_checkpoint.encoder)


def test_refuses_weights_that_do_not_reach_the_output(
    tiny_checkpoint: Checkpoint, tiny_graph: Path, tmp_path: Path
) -> None:
    def scale_weights(model: onnx_ir.Model) -> None:
        node = next(node for node in model.graph if node.op_type == "AttentionWeights")
        node.attributes["scale"] = onnx_ir.AttrFloat32("scale", 0.36)

    with pytest.raises(ParityError, match="attentions.0 differs"):
        verify(changed(tiny_graph, tmp_path, scale_weights), tiny_checkpoint.encoder)


def test_refuses_attention_and_norms_that_answer_to_each_others_switch(
    tiny_checkpoint: Checkpoint, tiny_graph: Path, tmp_path: Path
) -> None:
    def swap(model: onnx_ir.Model) -> None:
        inputs = {value.name: value for value in model.graph.inputs}
        attention, norms = inputs["attention_layers"], inputs["norm_layers"]
        places = [model.graph.inputs.index(value) for value in (attention, norms)]
        attention.name, norms.name = "swapped", "attention_layers"
        attention.name = "norm_layers"
        model.graph.inputs[places[0]], model.graph.inputs[places[1]] = onnx_ir.Value(), onnx_ir.Value()
        model.graph.inputs[places[0]], model.graph.inputs[places[1]] = norms, attention

    with pytest.raises(ParityError, match="attentions.0 changes where attention_layers asks for layer 0 alone"):
        verify(changed(tiny_graph, tmp_path, swap), tiny_checkpoint.encoder)


def test_refuses_layers_that_answer_to_each_others_switch(
    tiny_checkpoint: Checkpoint, tiny_graph: Path, tmp_path: Path
) -> None:
    def context(model: onnx_ir.Model) -> None:
        first, *_, last = (node for node in model.graph if node.op_type == "AttentionWeights")
        ours, theirs = first.inputs[3], last.inputs[3]
        assert theirs is not None
        producer = theirs.producer()
        assert producer is not None
        first.replace_input_with(3, theirs)
        last.replace_input_with(3, ours)
        model.graph.insert_before(first, producer)

    with pytest.raises(ParityError, match="attentions.0 changes where attention_layers asks for layer 0 alone"):
        verify(changed(tiny_graph, tmp_path, context), tiny_checkpoint.encoder)


def test_the_grid_covers_single_ragged_padded_and_longest_batches() -> None:
    cases = list(grid(dataclasses.replace(TINY, max_positions=300)))
    assert any(case.lengths == (300,) for case in cases)
    assert any(len(set(case.lengths)) > 4 for case in cases)
    assert any(max(case.lengths) < case.sequence for case in cases)
    assert any(1 in case.lengths and len(case.lengths) > 1 for case in cases)


@pytest.mark.slow
def test_refuses_wrong_weights_of_a_long_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = draw_weights(Encoder(dataclasses.replace(TINY, max_positions=600)))
    run = Session.run

    def wrong(self: Session, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = run(self, inputs)
        if inputs[INPUT_IDS].shape[1] > 512:
            outputs["attentions.3"] += 1e-3
        return outputs

    onnx_ir.save(trace(encoder), tmp_path / "model.onnx")
    monkeypatch.setattr(Session, "run", wrong)
    with pytest.raises(ParityError, match="attentions.3 differs"):
        verify(tmp_path / "model.onnx", encoder)
