"""The exported graphs: what their encoders compute, fused in every layer, and a text's bits its own."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
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
from export.families.bert import BERT
from export.graph import fold_biases, reduce_factors, trace
from export.precision import TOLERANCES, to_precision
from export.runtime import Session
from export.texts import graph_inputs, run_encoder
from export.verify import verify
from model.artifact import GRAPH, HEAD_GATES, LAST_HIDDEN_STATE, Artifact, attentions_name
from model.config import EncoderConfig
from model.config_parts import OUTPUT_NAMES, Projection
from model.encoder import Encoder
from model.packing import packing
from model.positions import LONGEST_DENSE, AttentionPositions, Window
from tests.networks import BERT_CONFIG, TINY, batch_of, draw_weights, tiny_network, vary
from tests.task_artifacts import TaskArtifact
from tests.transformers_heads import draw_bert, moved_norms, scale_heads

GraphOf = Callable[[str], tuple[Encoder, Path]]
LONGEST = 24
TOLERANCE = 1e-5
RESIDUAL = ((0, 1), (-0.25, 1.5))
UNLIKE_BERT: dict[str, dict[str, Any]] = {
    "relative": {"attention_positions": "relative", "shared_layers": (0, 0)},
    "alibi": {"positions": "none", "attention_positions": "alibi", "gated": True, "up_bias": False},
    "local": {
        "positions": "none",
        "attention_positions": "rotary",
        "local_rope_theta": 100.0,
        "local_layers": (1,),
        "window": 3,
        **dict.fromkeys(("pre_norm", "final_norm", "gated"), True),
        **dict.fromkeys(("first_attention_norm", "up_bias", "down_bias"), False),
        **dict.fromkeys(("attention_bias", "output_bias", "norm_bias"), False),
    },
    "grouped": {
        **dict.fromkeys(("pre_norm", "sandwich_norm", "final_norm", "gated", "causal", "query_key_norm"), True),
        "num_key_value_heads": (2, 1),
        "positions": "none",
        "attention_positions": "rotary",
        "norm": "rms_norm",
        "score_scale": 0.5,
    },
    "uneven groups": {"num_key_value_heads": (3, 1), "query_groups": ((1, 2, 1), (4,)), "causal": True},
    "more norms": {"query_key_layer_norm": True, "attention_residual_norm": True, "attention_positions": "alibi"},
    "root-mean-square": {"positions": "sinusoidal", "norm": "rms_norm", "activation": "silu", "gated": True},
}
VALUES: dict[str, dict[str, Any]] = {  # what may be on the way of values, where a bias is not only weighed
    "fixed mix": {"value_residual": RESIDUAL},
    "learned mix": {"value_residual": RESIDUAL, "learned_value_residual": True},
    "activated values": {"value_activation": "gelu"},
    "output gate": {"output_gate": True},
    "all": {
        **dict.fromkeys(("learned_value_residual", "output_gate"), True),
        "value_residual": RESIDUAL,
        "value_activation": "silu",
        "head_dropout": 0.2,
        "pooling": "last",
        "activation": "gelu_tanh",
        "projections": (Projection(size=3, bias=False, activation="identity"),),
    },
}
SHAPES: dict[str, dict[str, Any]] = {
    "dropped heads": {"head_dropout": 0.2},
    "one head": {"type_vocab_size": 0, "pooling": "cls", "num_heads": (1,), "d_k": 32},
    "heads of one number": {"pooling": "max", "activation": "relu", "num_heads": (32,), "d_k": 1, "d_v": 1},
    "a dense layer": {"activation": "silu", "projections": (Projection(size=3),)},
    "heads wider than the network": {"num_heads": (4, 2), "d_k": 3, "d_v": 40},
    "no heads": {"num_heads": (0, 0)},
    "all, rotary": {
        **VALUES["all"],
        **dict.fromkeys(("pre_norm", "gated"), True),
        "positions": "none",
        "attention_positions": "rotary",
    },
}
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


NETWORKS = {
    **{name: vary(type_vocab_size=0, **change) for name, change in UNLIKE_BERT.items()},
    **{name: vary(**change) for name, change in {**VALUES, **SHAPES}.items()},
    "windows": CONFIG,
    "windows, causal": CAUSAL,
    "tiny": TINY,
    "int8": vary(num_heads=(3, 0, 1)),
}
FAST = ("relative", "local", "all")  # a bias a head; rotary, pre-norm and gated, with a window; values on their way


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in names]


def draw_rows(lengths: Sequence[int], seed: int = 0) -> list[NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 48, length) for length in lengths]


@pytest.fixture(scope="module")
def graph_of(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> GraphOf:
    """A network's encoder, and where its graph is."""

    @cache
    def draw(name: str) -> tuple[Encoder, Path]:
        encoder, path = draw_weights(Encoder(NETWORKS[name])), tmp_path_factory.mktemp("graph") / "model.onnx"
        is_int8 = name == "int8"
        onnx_ir.save(trace(to_precision(tiny_network(encoder, tokenizer), "int8").traced if is_int8 else encoder), path)
        return encoder, path

    return draw


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest, graph_of: GraphOf) -> tuple[Session, EncoderConfig]:
    """The graph of a network, or of a task's artifact."""
    if request.param in NETWORKS:
        encoder, path = graph_of(request.param)
        return Session(path, threads=1), encoder.config
    made: TaskArtifact = request.getfixturevalue(request.param)
    return Session(made.artifact / GRAPH, threads=1), Artifact.open(made.artifact).manifest.config


@pytest.mark.parametrize("name", ["tiny", "dropped heads", *VALUES])
def test_folding_changes_nothing(name: str) -> None:
    encoder = draw_weights(Encoder(NETWORKS[name])).double().use("eager")
    folded = fold_biases(encoder)
    left = [name for name, _ in folded.named_parameters() if name.endswith((".key.bias", ".value.bias"))]
    assert len(left) == (2 if name in VALUES else 0)  # a value bias that is not only weighed stays
    reduce_factors(folded)
    assert folded.get_submodule("layers.1.attention").value_factor is not None
    ids, lengths = torch.arange(24).reshape(2, 12), torch.tensor([12, 5])
    asked = torch.ones(encoder.config.num_layers, dtype=torch.bool)
    drawn = torch.rand(2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1.5 - 0.25
    for gates in (None, drawn.clamp(0, 1)):  # about a third of them exactly 0 or 1
        expected, found = (net(ids, lengths, head_gates=gates, norm_layers=asked) for net in (encoder, folded))
        close = partial(torch.testing.assert_close, atol=1e-12, rtol=1e-12)
        close(found.last_hidden_state, expected.last_hidden_state)
        for norms, reference in zip(found.value_norms, expected.value_norms, strict=True):
            close(norms, reference)


@pytest.mark.parametrize("name", marked([*UNLIKE_BERT, *VALUES, *SHAPES]))
def test_the_graph_verifies_with_one_fused_operator_a_layer_and_each_weight_once(graph_of: GraphOf, name: str) -> None:
    encoder, path = graph_of(name)
    fused, parity = verify(path, encoder, tolerance=TOLERANCES["fp32"])
    assert fused.get("ai.onnx.Attention", 0) == sum(heads > 0 for heads in encoder.config.num_heads)
    assert max(parity[kind] for kind in ("pooled", "last_hidden_state")) < 1e-5
    assert max(parity.get(kind, 0) for kind in ("attentions", "value_norms", "gated")) < 2e-5
    if encoder.config.shared_layers:
        initializers = onnx_ir.load(path).graph.initializers.values()
        stored = sum(value.const_value.nbytes for value in initializers if value.const_value)
        once = sum(parameter.nbytes for parameter in encoder.parameters())  # PyTorch counts a shared one once
        assert stored == pytest.approx(once, rel=0.05)  # all but biases that were folded


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", "local"])
def test_half_precision(tmp_path: Path, name: str) -> None:
    encoder = draw_weights(Encoder(NETWORKS[name]))
    for parameter in encoder.parameters():
        parameter.mul_(0.5 if parameter.ndim > 1 else 1.0)  # drawn for float32: gates multiply what 11 bits round
    onnx_ir.save(trace(copy.deepcopy(encoder).to(torch.float16)), tmp_path / "model.onnx")
    fused, _ = verify(tmp_path / "model.onnx", encoder, tolerance=TOLERANCES["fp16"])
    assert fused == {"ai.onnx.Attention": 2}


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


@pytest.mark.parametrize("opened", ["tiny", "int8"], indirect=True)
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


@pytest.mark.parametrize(
    "opened", [*marked(UNLIKE_BERT), "reranker", "sparse_encoder", "multi_vector_encoder"], indirect=True
)
@given(
    lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=6),
    padding=st.integers(0, 8),
    place=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=settings().max_examples // 4)
def test_a_text_gives_the_same_bits_alone_and_in_any_batch(
    opened: tuple[Session, EncoderConfig], lengths: list[int], padding: int, place: int, seed: int
) -> None:
    (session, config), generator = opened, np.random.default_rng(seed)
    rows = [generator.integers(0, config.vocab_size, length) for length in lengths]
    place %= len(rows)
    output, shown, length = OUTPUT_NAMES[config.task], attentions_name(config.num_layers - 1), lengths[place]
    alone = session.run(batch_of(config, [rows[place]], layers=range(config.num_layers)))
    real = length if config.task == "multi_vector" else None
    together = session.run(batch_of(config, rows, padding))[output][place]
    assert np.array_equal(together[:real], alone[output][0][:real])
    weights = session.run(batch_of(config, rows, padding, layers=range(config.num_layers)))[shown][place]
    assert np.array_equal(weights[:, :length, :length], alone[shown][0])


def test_chunks_of_the_vocabulary_do_not_depend_on_the_batch(sparse_encoder: TaskArtifact) -> None:
    """More texts than a chunk has tokens: one position of each at a time."""
    session = Session(sparse_encoder.artifact / GRAPH, threads=1)
    config, generator = Artifact.open(sparse_encoder.artifact).manifest.config, np.random.default_rng(0)
    rows = [generator.integers(0, 400, 5) for _ in range(30)]
    together = session.run(batch_of(config, rows))["sparse"]
    for place, row in enumerate(rows):
        assert np.array_equal(session.run(batch_of(config, [row]))["sparse"][0], together[place])


def inputs_of(config: EncoderConfig, lengths: Sequence[int], sequence: int, layers: Sequence[int] = ()) -> Any:
    ids = np.random.default_rng(sequence).integers(0, config.vocab_size, (len(lengths), sequence))
    return graph_inputs(config, ids, np.array(lengths), layers=layers)


@pytest.mark.parametrize("name", ["windows", "windows, causal"])
@pytest.mark.parametrize(
    ("lengths", "sequence"),
    [
        ([LONGEST_DENSE + 1], LONGEST_DENSE + 1),
        ([LONGEST_DENSE + BLOCK, 1, BLOCK], LONGEST_DENSE + BLOCK),
        ([LONGEST_DENSE + 77, LONGEST_DENSE, 65], LONGEST_DENSE + 90),
    ],
)
def test_long_rows_equal_dense_attention(graph_of: GraphOf, name: str, lengths: list[int], sequence: int) -> None:
    """Layers with a window, which the graph computes in blocks there."""
    encoder, path = graph_of(name)
    inputs = inputs_of(encoder.config, lengths, sequence)
    inputs[HEAD_GATES] = np.random.default_rng(1).uniform(0, 1, (len(lengths), 4)).astype("float32")
    found = Session(path, threads=1).run(inputs)[LAST_HIDDEN_STATE]
    expected = run_encoder(encoder.use("eager"), inputs).last_hidden_state.numpy()
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(found[row, :length], expected[row, :length], atol=TOLERANCE, rtol=0)


def test_weights_of_long_rows_are_the_dense_ones(graph_of: GraphOf) -> None:
    encoder, path = graph_of("windows")
    session, lengths = Session(path, threads=1), [LONGEST_DENSE + 9]
    inputs = inputs_of(CONFIG, lengths, lengths[0], layers=(0,))
    with_weights, without = session.run(inputs), session.run(inputs_of(CONFIG, lengths, lengths[0]))
    expected = run_encoder(encoder.use("eager"), inputs)
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
