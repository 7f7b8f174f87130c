"""The graph: names, shapes and what it computes, also of layers with a window in long rows."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer

from export.checkpoint import build_encoder
from export.errors import ParityError
from export.families.bert import BERT
from export.graph import fold_biases, trace
from export.precision import TOLERANCES, to_precision
from export.runtime import Session
from export.texts import graph_inputs, run_encoder
from export.verify import verify
from model.artifact import HEAD_GATES, LAST_HIDDEN_STATE
from model.config import EncoderConfig
from model.encoder import Encoder
from model.packing import packing
from model.positions import LONGEST_DENSE, AttentionPositions, Window
from tests.disk_cache import kept
from tests.networks import BERT_CONFIG, TINY, batch_of, draw_weights, tiny_network, vary
from tests.transformers_heads import draw_bert, moved_norms, scale_heads

RESIDUAL = [(0, 1), (-0.25, 1.5)]
ALL: dict[str, Any] = {
    "value_residual": RESIDUAL,
    "learned_value_residual": True,
    "value_activation": "silu",
    "output_gate": True,
    "head_dropout": 0.2,
    "pooling": "last",
    "activation": "gelu_tanh",
    "projections": [{"size": 3, "bias": False, "activation": "identity"}],
}
CHANGES: list[dict[str, Any]] = [
    {"value_residual": RESIDUAL},
    {"value_residual": RESIDUAL, "learned_value_residual": True},
    {"value_activation": "gelu"},
    {"output_gate": True},
    {"head_dropout": 0.2},
]
SHAPES: list[dict[str, Any]] = [
    {"type_vocab_size": 0, "pooling": "cls", "num_heads": [1], "d_k": 32},
    {"pooling": "max", "activation": "relu", "num_heads": [32], "d_k": 1, "d_v": 1},
    {"activation": "silu", "projections": [{"size": 3}]},
    {"num_heads": [4, 2], "d_k": 3, "d_v": 40},
    {"num_heads": [0, 0]},
]


def network(**change: Any) -> Encoder:
    return draw_weights(Encoder(EncoderConfig.from_dict({**TINY.to_dict(), "num_heads": [4, 4], **change})))


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


@pytest.mark.parametrize(
    "change",
    [
        *(pytest.param(change, marks=pytest.mark.slow) for change in CHANGES),
        ALL,
        pytest.param(
            {**ALL, "pre_norm": True, "positions": "none", "attention_positions": "rotary", "gated": True},
            marks=pytest.mark.slow,
        ),
        *(pytest.param(change, marks=pytest.mark.slow) for change in SHAPES),
    ],
    ids=str,
)
def test_the_graph_verifies_with_one_fused_operator_a_layer(change: dict[str, Any], tmp_path: Path) -> None:
    encoder = network(**change)
    onnx_ir.save(trace(encoder), tmp_path / "model.onnx")
    fused, parity = verify(tmp_path / "model.onnx", encoder, tolerance=TOLERANCES["fp32"])
    assert fused.get("ai.onnx.Attention", 0) == sum(heads > 0 for heads in encoder.config.num_heads)
    assert max(parity["last_hidden_state"], parity["pooled"]) < 1e-5


SMALL = vary(num_heads=(3, 0, 1))
CONFIGS = {"fp32": TINY, "int8": SMALL}


def draw_rows(lengths: Sequence[int], seed: int = 0) -> list[NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 48, length) for length in lengths]


@pytest.fixture(scope="module", params=CONFIGS)
def opened(
    request: pytest.FixtureRequest, tiny_graph: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Session, EncoderConfig]:
    """The graph of each precision."""
    path = tiny_graph
    if request.param == "int8":
        path = tmp_path_factory.mktemp("int8") / "model.onnx"
        checkpoint = tiny_network(draw_weights(Encoder(SMALL)), tokenizer)
        onnx_ir.save(trace(to_precision(checkpoint, "int8").traced), path)
    return Session(path, threads=1), CONFIGS[request.param]


@pytest.mark.slow
def test_the_graph_equals_transformers_head_by_head(tmp_path: Path) -> None:
    """Each text of the batch with another head changed: removed, halved, left alone."""
    theirs = draw_bert()
    config = BERT.read_config(BERT_CONFIG, "mean")
    encoder = build_encoder(config, BERT.read_state(theirs.state_dict(), BERT_CONFIG))
    onnx_ir.save(trace(encoder), tmp_path / "model.onnx")
    session, rows = Session(tmp_path / "model.onnx", threads=1), draw_rows((10, 6, 1))
    changes: list[dict[tuple[int, int], float]] = [{(0, 1): 0.0, (2, 3): 0.0}, {(1, 0): 0.5}, {}]
    gates = np.ones((3, 12), np.float32)
    for row, change in enumerate(changes):
        for (layer, head), gate in change.items():
            gates[row, config.head_span(layer).start + head] = gate
    found = session.run({**batch_of(config, rows, layers=range(3)), HEAD_GATES: gates})
    for row, (ids, change) in enumerate(zip(rows, changes, strict=True)):
        with torch.inference_mode(), scale_heads(theirs, change):
            expected = theirs(torch.from_numpy(ids)[None]).last_hidden_state[0].numpy()
            norms = moved_norms(theirs, ids.tolist())
        np.testing.assert_allclose(found["last_hidden_state"][row, : len(ids)], expected, atol=1e-5, rtol=0)
        for layer, reference in enumerate(norms):
            values = found[f"value_norms.{layer}"][row, :, : len(ids)]
            # float32 vectors of 32 numbers that may cancel: relative to the layer's longest
            np.testing.assert_allclose(values, reference, atol=1e-5 * float(reference.max()), rtol=0)


@settings(max_examples=settings().max_examples // 4)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    masked=st.lists(st.booleans(), min_size=5, max_size=5),
    seed=st.integers(0, 99),
)
def test_gates_of_batch_mates_change_no_bit(
    opened: tuple[Session, EncoderConfig], lengths: list[int], masked: list[bool], seed: int
) -> None:
    session, config = opened
    rows, layers, heads = draw_rows(lengths, seed), range(config.num_layers), sum(config.num_heads)
    inputs = batch_of(config, rows, layers=layers)
    gates = np.random.default_rng(seed).uniform(-1, 2, (len(rows), heads)).clip(0, 1).astype(np.float32)
    gates[[not mask for mask in masked[: len(rows)]]] = 1
    plain, mixed = session.run(inputs), session.run({**inputs, HEAD_GATES: gates})
    for row, (length, is_masked) in enumerate(zip(lengths, masked, strict=False)):
        single = session.run({**batch_of(config, [rows[row]], layers=layers), HEAD_GATES: gates[row : row + 1]})
        assert np.array_equal(single["pooled"][0], mixed["pooled"][row])
        for layer in [layer for layer in layers if config.num_heads[layer]]:
            norms = single[f"value_norms.{layer}"][0], mixed[f"value_norms.{layer}"][row, :, :length]
            # a single token is a vector times a matrix, for which there is another kernel; it is in batches too
            np.testing.assert_allclose(*norms, rtol=1e-5 if length == 1 else 0)
        if not is_masked:
            assert np.array_equal(plain["pooled"][row], mixed["pooled"][row])
            assert np.array_equal(plain["last_hidden_state"][row, :length], mixed["last_hidden_state"][row, :length])


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


TOLERANCE = 1e-5
CONFIG = EncoderConfig(
    vocab_size=50,
    hidden_size=12,
    num_heads=(4,),
    num_key_value_heads=(2,),
    d_k=4,
    d_v=3,
    intermediate_size=8,
    max_positions=2 * LONGEST_DENSE,
    positions="none",
    attention_positions="rotary",
    local_layers=(0,),
    window=64,
)
CAUSAL = replace(CONFIG, causal=True, window=5)
BLOCK = 128


@cache
def encoder_of(config: EncoderConfig) -> Encoder:
    torch.manual_seed(0)
    return draw_weights(Encoder(config)).use("eager")


@cache
def session_of(config: EncoderConfig) -> Session:
    path = kept("local", config.to_dict(), lambda path: onnx_ir.save(trace(encoder_of(config)), path))
    return Session(Path(path), threads=1)


def inputs_of(config: EncoderConfig, lengths: Sequence[int], sequence: int, layers: Sequence[int] = ()) -> Any:
    ids = np.random.default_rng(sequence).integers(0, config.vocab_size, (len(lengths), sequence))
    return graph_inputs(config, ids, np.array(lengths), layers=layers)


@pytest.mark.parametrize("config", [CONFIG, CAUSAL], ids=["both-sides", "causal"])
@pytest.mark.parametrize(
    ("lengths", "sequence"),
    [
        ([LONGEST_DENSE + 1], LONGEST_DENSE + 1),
        ([LONGEST_DENSE + BLOCK, 1, BLOCK], LONGEST_DENSE + BLOCK),
        ([LONGEST_DENSE + 77, LONGEST_DENSE, 65], LONGEST_DENSE + 90),
    ],
)
def test_long_rows_equal_dense_attention(config: EncoderConfig, lengths: list[int], sequence: int) -> None:
    inputs = inputs_of(config, lengths, sequence)
    inputs[HEAD_GATES] = np.random.default_rng(1).uniform(0, 1, (len(lengths), sum(config.num_heads))).astype("float32")
    found = session_of(config).run(inputs)
    expected = run_encoder(encoder_of(config), inputs).last_hidden_state.numpy()
    for row, length in enumerate(lengths):
        hidden = found[LAST_HIDDEN_STATE][row, :length]
        np.testing.assert_allclose(hidden, expected[row, :length], atol=TOLERANCE, rtol=0)


def test_weights_of_long_rows_are_the_dense_ones() -> None:
    inputs = inputs_of(CONFIG, [LONGEST_DENSE + 9], LONGEST_DENSE + 9, layers=(0,))
    with_weights, without = (session_of(CONFIG).run(given) for given in (inputs, inputs_of(CONFIG, [1033], 1033)))
    expected = run_encoder(encoder_of(CONFIG), inputs)
    assert expected.attentions[0] is not None
    np.testing.assert_allclose(with_weights["attentions.0"], expected.attentions[0], atol=TOLERANCE, rtol=0)
    assert np.array_equal(with_weights[LAST_HIDDEN_STATE], without[LAST_HIDDEN_STATE])


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (CONFIG, Window(64, 64)),
        (CAUSAL, Window(5, 0)),
        (replace(CONFIG, window=65), None),
        (replace(CONFIG, max_positions=LONGEST_DENSE), None),
        (replace(CONFIG, num_key_value_heads=(), attention_positions="alibi"), None),
    ],
)
def test_wide_windows_short_networks_and_other_biases_stay_dense(config: EncoderConfig, window: Window | None) -> None:
    far, near = AttentionPositions(config)(packing(torch.tensor([3]), 3), torch.float32)
    assert (far.window, near.window) == (None, window)
