from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx_ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from export.checkpoint import build_encoder
from export.errors import ParityError
from export.families.bert import BERT
from export.graph import fold_biases, no_collection, trace
from export.int8.quantize import quantize_encoder, see_ranges
from export.precision import TOLERANCES
from export.runtime import Session
from export.verify import verify
from model.artifact import ATTENTION_LAYERS, HEAD_GATES, INPUT_IDS, LENGTHS, NORM_LAYERS, TOKEN_TYPE_IDS
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.networks import BERT_CONFIG, TINY, draw_weights, random_batches
from tests.transformers_heads import draw_bert, moved_norms, scale_heads

RESIDUAL = [(0, 1), (-0.25, 1.5)]
ALL: dict[str, Any] = {
    "value_residual": RESIDUAL,
    "learned_value_residual": True,
    "value_activation": "silu",
    "output_gate": True,
    "head_dropout": 0.2,
}
CHANGES: list[dict[str, Any]] = [
    {"value_residual": RESIDUAL},
    {"value_residual": RESIDUAL, "learned_value_residual": True},
    {"value_activation": "gelu"},
    {"output_gate": True},
    {"head_dropout": 0.2},
]


def network(**change: Any) -> Encoder:
    settings = {**TINY.to_dict(), "num_heads": [4, 4], **change}
    return draw_weights(Encoder(EncoderConfig.from_dict(settings)))


@pytest.mark.parametrize("change", [*CHANGES, ALL], ids=str)
def test_folding_changes_nothing(change: dict[str, Any]) -> None:
    encoder = network(**change).double()
    folded = fold_biases(encoder)
    left = [name for name, _ in folded.named_parameters() if name.endswith((".key.bias", ".value.bias"))]
    assert len(left) == (0 if set(change) == {"head_dropout"} else 2)  # a value bias that is not only weighed stays
    ids, lengths = torch.arange(24).reshape(2, 12), torch.tensor([12, 5])
    gates = torch.rand(2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for wanted in (None, gates):
        expected = encoder.use("eager")(ids, lengths, head_gates=wanted)
        found = folded.use("eager")(ids, lengths, head_gates=wanted)
        torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, atol=1e-12, rtol=0)


@pytest.mark.parametrize("before", [True, False])
def test_the_garbage_collector_pauses_and_is_then_as_it_was(before: bool) -> None:
    with patch("gc.isenabled", lambda: before), patch("gc.disable") as disable, patch("gc.enable") as enable:
        with suppress(RuntimeError), no_collection():
            disable.assert_called_once_with()
            raise RuntimeError("a trace that fails")
        assert enable.called is before


@pytest.mark.parametrize(
    "change",
    [
        *(pytest.param(change, marks=pytest.mark.slow) for change in CHANGES),
        ALL,
        pytest.param(
            {**ALL, "pre_norm": True, "positions": "none", "attention_positions": "rotary", "gated": True},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_the_graph_verifies_with_one_fused_operator_a_layer(change: dict[str, Any], tmp_path: Path) -> None:
    encoder = network(**change)
    onnx_ir.save(trace(encoder), tmp_path / "model.onnx")
    fused, parity = verify(tmp_path / "model.onnx", encoder, tolerance=TOLERANCES["fp32"])
    assert fused == {"ai.onnx.Attention": 2}
    assert parity["last_hidden_state"] < 1e-5


Inputs = dict[str, NDArray[np.generic]]
HEADS = sum(TINY.num_heads)
LENGTHS_OF_ROWS = (10, 6, 1)


def open_graph(encoder: Encoder, folder: Path) -> Session:
    path = folder / "model.onnx"
    onnx_ir.save(trace(encoder), path)
    return Session(path, threads=1)


def batch(lengths: tuple[int, ...], layers: int, *, norms: bool = False, seed: int = 0) -> Inputs:
    ids = np.random.default_rng(seed).integers(0, 48, (len(lengths), max(lengths)))
    wanted = np.full(layers, norms)
    return {
        INPUT_IDS: ids,
        LENGTHS: np.array(lengths),
        ATTENTION_LAYERS: wanted,
        NORM_LAYERS: wanted,
        TOKEN_TYPE_IDS: np.zeros_like(ids),
    }


@pytest.fixture(scope="module")
def tiny(tiny_graph: Path) -> Session:
    return Session(tiny_graph, threads=1)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Session:
    encoder = draw_weights(Encoder(TINY))
    return open_graph(
        quantize_encoder(encoder, see_ranges(encoder, random_batches(1))), tmp_path_factory.mktemp("int8")
    )


@pytest.mark.slow
def test_the_graph_equals_transformers_head_by_head(tmp_path: Path) -> None:
    """Each text of the batch with another head changed: removed, halved, left alone."""
    theirs = draw_bert()
    config = BERT.read_config(BERT_CONFIG, "mean")
    session = open_graph(build_encoder(config, BERT.read_state(theirs.state_dict(), BERT_CONFIG)), tmp_path)
    changes: list[dict[tuple[int, int], float]] = [{(0, 1): 0.0, (2, 3): 0.0}, {(1, 0): 0.5}, {}]
    gates = np.ones((3, 12), np.float32)
    for row, change in enumerate(changes):
        for (layer, head), gate in change.items():
            gates[row, config.head_span(layer).start + head] = gate
    inputs = batch(LENGTHS_OF_ROWS, 3, norms=True)
    found = session.run({**inputs, HEAD_GATES: gates})
    for row, (length, change) in enumerate(zip(LENGTHS_OF_ROWS, changes, strict=True)):
        ids = inputs[INPUT_IDS][row, :length].tolist()
        with torch.inference_mode(), scale_heads(theirs, change):
            expected = theirs(torch.tensor([ids])).last_hidden_state[0].numpy()
            norms = moved_norms(theirs, ids)
        np.testing.assert_allclose(found["last_hidden_state"][row, :length], expected, atol=1e-5, rtol=0)
        for layer, reference in enumerate(norms):
            values = found[f"value_norms.{layer}"][row, :, :length]
            # float32 vectors of 32 numbers that may cancel: relative to the layer's longest
            np.testing.assert_allclose(values, reference, atol=1e-5 * float(reference.max()), rtol=0)


@settings(max_examples=settings().max_examples // 4)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    masked=st.lists(st.booleans(), min_size=5, max_size=5),
    seed=st.integers(0, 99),
)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_gates_of_batch_mates_change_no_bit(
    request: pytest.FixtureRequest, precision: str, lengths: list[int], masked: list[bool], seed: int
) -> None:
    session: Session = request.getfixturevalue({"fp32": "tiny", "int8": "quantized"}[precision])
    inputs = batch(tuple(lengths), 4, norms=True, seed=seed)
    gates = np.random.default_rng(seed).uniform(-1, 2, (len(lengths), HEADS)).clip(0, 1).astype(np.float32)
    gates[[not mask for mask in masked[: len(lengths)]]] = 1
    plain, mixed = session.run(inputs), session.run({**inputs, HEAD_GATES: gates})
    for row, (length, is_masked) in enumerate(zip(lengths, masked, strict=False)):
        alone = {name: values[row : row + 1] for name, values in inputs.items() if len(values) == len(lengths)}
        alone |= {name: inputs[name] for name in (ATTENTION_LAYERS, NORM_LAYERS)}
        for name in (INPUT_IDS, TOKEN_TYPE_IDS):
            alone[name] = inputs[name][row : row + 1, :length]
        single = session.run({**alone, HEAD_GATES: gates[row : row + 1]})
        assert np.array_equal(single["pooled"][0], mixed["pooled"][row])
        for layer in (0, 1, 3):
            norms = single[f"value_norms.{layer}"][0], mixed[f"value_norms.{layer}"][row, :, :length]
            # a single token is a vector times a matrix, for which there is another kernel; it is in batches too
            np.testing.assert_allclose(*norms, rtol=1e-5 if length == 1 else 0)
        if not is_masked:
            assert np.array_equal(plain["pooled"][row], mixed["pooled"][row])
            assert np.array_equal(plain["last_hidden_state"][row, :length], mixed["last_hidden_state"][row, :length])


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_every_head_matters_and_gates_between_lie_between(request: pytest.FixtureRequest, precision: str) -> None:
    session: Session = request.getfixturevalue({"fp32": "tiny", "int8": "quantized"}[precision])
    inputs = batch((9,), 4)
    plain = session.run(inputs)["pooled"]
    for head in range(HEADS):
        gates = np.ones((1, HEADS), np.float32)
        changes = []
        for gate in (0.9, 0.5, 0.0):
            gates[0, head] = gate
            changes.append(float(np.linalg.norm(session.run({**inputs, HEAD_GATES: gates})["pooled"] - plain)))
        assert 0 < changes[0] < changes[1] < changes[2]


def test_verification_refuses_a_head_that_keeps_its_bias(tiny_graph: Path, tmp_path: Path) -> None:
    """The graph of an encoder whose folded value bias stays when its head is closed."""
    encoder = draw_weights(Encoder(TINY))
    model = onnx_ir.load(tiny_graph)
    for node in model.graph:
        if node.op_type == "GatedContext":
            null_context = node.inputs[3]
            assert null_context is not None
            assert null_context.const_value is not None
            null_context.const_value = onnx_ir.tensor(
                np.zeros(null_context.const_value.shape.numpy(), np.float32), name=null_context.name
            )
    onnx_ir.save(model, tmp_path / "model.onnx")
    with pytest.raises(ParityError, match=r"gated\.pooled differs|value_norms\.0 differs"):
        verify(tmp_path / "model.onnx", encoder, tolerance=TOLERANCES["fp32"])
