"""Verification: what of a graph is refused, and the reference, widened a layer at a time or whole, to the bit."""

import copy
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from export.checkpoint import Checkpoint
from export.errors import FusionError, ParityError, VerificationError
from export.graph import input_names
from export.int8.quantize import Range, quantize_encoder
from export.precision import TOLERANCES
from export.reference import available_bytes, float64_reference, needed_bytes, require_memory, widened_by_layer
from export.runtime import Session
from export.verify import Parity, Tolerance, grid, judge_parity, one_of_a_kind
from export.verify import verify as verify_within
from model.artifact import ATTENTION_LAYERS, LENGTHS, NORM_LAYERS
from model.config import EncoderConfig
from model.decomposition.decompose import decompose
from model.encoder import Encoder, EncoderOutput
from tests.drawn_configs import LONGEST, VOCABULARY, configs
from tests.networks import TINY, batch_of, draw_weights, vary

ROOT = Path(__file__).parents[2]


def verify(path: Path, encoder: Encoder) -> tuple[dict[str, int], dict[str, float]]:
    return verify_within(path, encoder, tolerance=TOLERANCES["fp32"])


def test_the_graph_has_the_contracts_types(tiny_graph: Path) -> None:
    model = onnx_ir.load(tiny_graph)
    assert [str(value.dtype) for value in model.graph.inputs] == ["INT64", "INT64", "BOOL", "BOOL", "FLOAT", "INT64"]
    assert {str(value.dtype) for value in model.graph.outputs} == {"FLOAT"}
    assert model.opset_imports[""] == 24


def test_the_graph_says_nothing_of_the_machine_that_wrote_it(tiny_graph: Path) -> None:
    written = tiny_graph.read_bytes()
    assert not [name for name in (b".py", b"site-packages", str(ROOT).encode()) if name in written]
    model = onnx_ir.load(tiny_graph)
    nodes = chain(model.graph.all_nodes(), *(function.all_nodes() for function in model.functions.values()))
    assert {*model.functions} <= {node.op_identifier() for node in nodes}, "others are not the same in every export"


@pytest.fixture(scope="module")
def tiny_session(tiny_graph: Path) -> Session:
    return Session(tiny_graph, threads=1)


def test_weights_and_norms_come_only_from_the_layers_asked_for(tiny_session: Session) -> None:
    found = tiny_session.run(batch_of(TINY, [np.arange(3), np.arange(1)], layers=(1,)))
    shapes = [found[f"attentions.{layer}"].shape for layer in range(4)]
    assert shapes == [(0, 4, 0, 0), (2, 3, 3, 3), (0, 0, 0, 0), (0, 1, 0, 0)]
    assert [found[f"value_norms.{layer}"].shape for layer in range(4)] == [(0, 4, 0), (2, 3, 3), (0, 0, 0), (0, 1, 0)]


def test_a_row_without_tokens_is_finite_and_zero(tiny_session: Session) -> None:
    inputs = batch_of(TINY, [np.arange(3), np.arange(2)], layers=range(4))
    found = tiny_session.run({**inputs, LENGTHS: np.array([3, 0])})
    assert (found["attentions.0"][1] == 0).all()
    assert (found["pooled"][1] == 0).all()


def test_refuses_a_graph_of_other_weights(tiny_checkpoint: Checkpoint, tiny_graph: Path) -> None:
    other = draw_weights(Encoder(TINY), seed=1)
    with pytest.raises(ParityError, match="pooled differs from the PyTorch encoder by .* allowed are 1e-05 and 1e-05"):
        verify(tiny_graph, other)
    fused, parity = verify(tiny_graph, tiny_checkpoint.encoder)
    assert fused == {"ai.onnx.Attention": 3}
    assert parity["cases"] == len(list(grid(TINY)))


def unfuse(model: onnx_ir.Model) -> None:
    """Replaces the first fused node by something that has its shape: its value input."""
    node = next(node for node in model.graph if node.op_type == "Attention")
    value = node.inputs[2]
    assert value is not None
    node.outputs[0].replace_all_uses_with(value)
    model.graph.remove(node, safe=True)


def rename(model: onnx_ir.Model) -> None:
    model.graph.outputs[0].name = "vector"


def collide(model: onnx_ir.Model) -> None:
    model.graph.outputs[0].name = model.graph.outputs[1].name


def scale_weights(model: onnx_ir.Model) -> None:
    """Changes weights, which do not reach the output."""
    node = next(node for node in model.graph if node.op_type == "AttentionWeights")
    node.attributes["scale"] = onnx_ir.AttrFloat32("scale", 0.36)


def swap_switches(model: onnx_ir.Model) -> None:
    """Lets attention answer to the switch of norms, and norms to the switch of attention."""
    inputs = list(model.graph.inputs)
    first, second = (input_names(TINY).index(name) for name in (ATTENTION_LAYERS, NORM_LAYERS))
    inputs[first], inputs[second] = inputs[second], inputs[first]
    for value, name in zip(inputs, input_names(TINY), strict=True):
        value.name = name
    model.graph.inputs.clear()
    model.graph.inputs.extend(inputs)


def keep_biases(model: onnx_ir.Model) -> None:
    """Lets a folded value bias stay when its head is closed."""
    for node in model.graph:
        if node.op_type == "GatedContext":
            null_context = node.inputs[3]
            assert null_context is not None
            assert null_context.const_value is not None
            zeros = np.zeros(null_context.const_value.shape.numpy(), np.float32)
            null_context.const_value = onnx_ir.tensor(zeros, name=null_context.name)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (unfuse, FusionError, "ONNX Runtime runs 2 fused attention nodes; expected 3"),
        (rename, VerificationError, "the graph's outputs are vector, .*; expected pooled, "),
        (collide, VerificationError, "ONNX Runtime refuses the graph"),
        (scale_weights, ParityError, "attentions.0 differs"),
        (keep_biases, ParityError, r"gated\.pooled differs|value_norms\.0 differs"),
        (swap_switches, ParityError, "attentions.0 changes where attention_layers asks for layer 0 alone"),
    ],
)
def test_refuses_a_graph_with_something_wrong_in_it(
    tiny_checkpoint: Checkpoint, tiny_graph: Path, tmp_path: Path, change: Any, error: type[Exception], message: str
) -> None:
    model = onnx_ir.load(tiny_graph)
    change(model)
    onnx_ir.save(model, tmp_path / "model.onnx")
    with pytest.raises(error, match=message):
        verify(tmp_path / "model.onnx", tiny_checkpoint.encoder)


EXACT = np.zeros((2, 3))
OFF = np.full((2, 3), 2e-5, np.float32)


def test_as_many_times_pytorchs_own_rounding_is_allowed() -> None:
    parity = Parity(Tolerance(1e-5, 1e-3, rounding=2.0))
    parity.record("attentions.0", np.ones(1, np.float32), np.ones(1))  # the output's values are up to 1
    parity.record("gated.attentions.0", OFF, EXACT)
    parity.record_rounding("attentions.0", OFF * 0.3, EXACT)
    assert "allowed are 1e-05, or 2 times PyTorch's own rounding of 6.00e-06" in str(parity.excess())
    parity.record("attentions.1", OFF * 0.1, EXACT)
    parity.record_rounding("attentions.1", OFF * 0.55, EXACT)  # the same output, elsewhere
    assert parity.excess() is None
    found = parity.to_dict()
    assert (found["gated"], found["attentions"]) == (pytest.approx(2e-5), pytest.approx(2e-6))
    assert found["rounding"] == {"attentions": pytest.approx(1.1e-5)}
    parity.record("pooled", OFF, EXACT)
    parity.record_rounding("pooled", OFF * 0.3, EXACT)  # another output's rounding does not count
    assert "pooled differs from the PyTorch encoder by 2.00e-05 at most" in str(parity.excess())


def test_rounding_is_measured_where_a_difference_needs_it(tiny_checkpoint: Checkpoint) -> None:
    encoder = tiny_checkpoint.encoder
    parity, reference = Parity(Tolerance(1e-5, 1e-5, rounding=2.0)), float64_reference(encoder)
    parity.differences["pooled"] = 1e-6
    judge_parity(parity, reference, encoder)
    assert not parity.rounding
    parity.tolerance = Tolerance(1e-9, 1e-5, rounding=100.0)
    judge_parity(parity, reference, encoder)
    assert 1e-8 < parity.rounding["pooled"] < 1e-6
    parity.differences["last_hidden_state"] = 1e-3
    with pytest.raises(ParityError, match="hidden_state differs .* by 1.00e-03 at most; allowed are 1e-09, or 100"):
        judge_parity(parity, reference, encoder)


FAR = OFF * 10


@pytest.mark.parametrize(
    ("found", "expected", "tolerance", "message"),
    [
        (OFF, EXACT, Tolerance(1e-5, 1e-3), "by 2.00e-05 at most and 2.00e-05 on average, relative to 1"),
        (FAR, EXACT, Tolerance(1e-5, 1.0, rounding=2.0), "by 2.00e-04"),  # more than rounding: at once
        (OFF, EXACT, Tolerance(1e-5, 1e-5, rounding=2.0), "2.00e-05 on average"),  # no rounding excuses a wrong mean
        (OFF * 0, EXACT + np.nan, Tolerance(1e-5, 1e-5), "PyTorch encoder's pooled holds values that are not"),
        (OFF * np.nan, EXACT, Tolerance(1e-5, 1e-5), "pooled holds values that are not finite"),
        (OFF, EXACT[0], Tolerance(1e-5, 1e-5), "has shape (2, 3), the encoder gives (3,)"),
    ],
    ids=["tolerance", "far", "mean", "reference", "not finite", "shape"],
)
def test_a_difference_is_refused(found: Any, expected: Any, tolerance: Tolerance, message: str) -> None:
    with pytest.raises(ParityError, match=re.escape(message)):
        Parity(tolerance).record("pooled", found, expected)


def test_an_output_of_small_values_is_judged_by_them() -> None:
    small = np.full(4, 9e-6)
    parity = Parity(Tolerance(1e-5, 1e-5, rounding=2.0))
    parity.record("logits", np.zeros(4, np.float32), small)
    assert "by 9.00e-06 at most; allowed are 9e-11" in str(parity.excess())
    assert "by nan" in str(Parity(parity.tolerance, differences={"pooled": np.nan}).excess())


def test_differences_are_relative_to_large_references_only() -> None:
    parity = Parity(Tolerance(2e-5, 2e-5))
    parity.record("last_hidden_state", np.array([1000.01], np.float32), np.array([1000.0]))
    assert parity.differences["last_hidden_state"] == pytest.approx(1e-5, rel=1e-2)


@pytest.mark.parametrize(
    ("longest", "of_all", "of_some", "of_none"),
    [
        *((40, 40, [], []), (512, 512, [], []), (514, 512, [514], []), (1024, 512, [1024], [])),
        *((1025, 512, [1024], [1025]), (8192, 512, [1024], [2048])),  # no longer than memory allows
    ],
)
def test_single_ragged_padded_and_longest_batches_are_compared_and_long_ones_with_fewer_weights(
    longest: int, of_all: int, of_some: list[int], of_none: list[int]
) -> None:
    cases = list(grid(vary(max_positions=longest)))
    assert max(case.sequence for case in cases if case.layers == (0, 1)) == of_all
    assert [case.sequence for case in cases if case.layers == (1,)] == of_some
    assert [case.sequence for case in cases if not case.layers] == of_none
    assert max(len(case.lengths) * case.sequence for case in cases if case.layers) <= 1024
    assert any(case.lengths == (of_all,) for case in cases)
    assert any(len(set(case.lengths)) > 4 for case in cases)
    assert any(max(case.lengths) < case.sequence for case in cases)
    assert any(1 in case.lengths and len(case.lengths) > 1 for case in cases)


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({"num_heads": (4, 4, 4)}, (2,)),
        ({"num_heads": (4, 4, 0)}, (1,)),
        ({"num_heads": (0, 0)}, ()),
        ({"num_heads": (4,) * 5, "local_layers": (1, 2, 4), "window": 3}, (3, 4)),
        ({"num_heads": (4, 4, 0), "local_layers": (1, 2), "window": 3}, (0, 1)),
    ],
)
def test_one_layer_of_a_kind_is_compared_where_not_all_are(change: dict[str, Any], layers: tuple[int, ...]) -> None:
    assert one_of_a_kind(vary(**change)) == layers


def outputs(encoder: Encoder, implementation: Any) -> EncoderOutput:
    """Of a ragged batch, with gates and every layer's norms."""
    config, generator = encoder.config, torch.Generator().manual_seed(1)
    sequence = min(config.max_positions, LONGEST)
    ids = torch.randint(0, min(VOCABULARY, config.vocab_size), (3, sequence), generator=generator)
    types = torch.randint(0, max(1, config.type_vocab_size), ids.shape, generator=generator)
    gates = torch.rand(3, sum(config.num_heads), generator=generator)
    with torch.inference_mode():
        found: EncoderOutput = encoder.use(implementation)(
            ids,
            torch.tensor([sequence, 1, 5]),
            token_type_ids=types if config.type_vocab_size else None,
            head_gates=gates,
            norm_layers=torch.ones(config.num_layers, dtype=torch.bool),
        )
    return found


def tensors(found: EncoderOutput) -> list[Tensor]:
    shown: Sequence[Tensor | None] = (*found.attentions, *found.value_norms)
    return [found.task_output, found.last_hidden_state, *(tensor for tensor in shown if tensor is not None)]


def require_same_bits(encoder: Encoder) -> None:
    whole, by_layer = copy.deepcopy(encoder).double(), widened_by_layer(encoder)
    for implementation in ("eager", "sdpa"):
        expected, found = (tensors(outputs(reference, implementation)) for reference in (whole, by_layer))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == torch.float64
            assert torch.equal(one, other)
    assert all(parameter.dtype == torch.float32 for parameter in encoder.parameters())


@given(config=configs(), seed=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_any_network_widened_by_layer_gives_the_bits_of_the_whole(config: EncoderConfig, seed: int) -> None:
    torch.manual_seed(seed)
    require_same_bits(draw_weights(Encoder(config)))


@pytest.mark.parametrize(
    "change",
    [
        {"num_heads": [2, 2, 2], "shared_layers": [0, 1, 0]},
        {"layer_signal_size": 4},
        *(
            {"task": "sparse", "task_settings": {"tied": tied}} for tied in (True, False)
        ),  # which reads token embeddings
    ],
    ids=str,
)
def test_every_part_is_widened(change: dict[str, Any]) -> None:
    require_same_bits(draw_weights(Encoder(EncoderConfig.from_dict({**TINY.to_dict(), **change}))))


@given(config=configs())
@settings(max_examples=5, deadline=None)
def test_what_input_tokens_contribute_is_the_same_to_the_bit(config: EncoderConfig) -> None:
    encoder = draw_weights(Encoder(config))
    ids = torch.randint(0, VOCABULARY, (1, 4), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        references = copy.deepcopy(encoder).double(), widened_by_layer(encoder)
        whole, by_layer = (decompose(reference.use("eager"), ids) for reference in references)
    for one, other in zip(by_layer, whole, strict=True):
        assert torch.equal(one, other)


def test_a_large_network_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = draw_weights(Encoder(TINY))
    assert sum(parameter.nbytes for parameter in float64_reference(encoder).parameters()) == 2 * sum(
        parameter.nbytes for parameter in encoder.parameters()
    )
    monkeypatch.setattr("export.reference.LARGE", 1)
    kept = {parameter.data_ptr() for parameter in float64_reference(encoder).parameters()}
    of_layers = {parameter.data_ptr() for parameter in encoder.layers.parameters()}
    assert of_layers | {encoder.embeddings.token.weight.data_ptr()} <= kept


def test_a_quantised_network_is_widened_by_layer() -> None:
    encoder = draw_weights(Encoder(TINY))
    seen = {}
    for name, module in encoder.named_modules():
        if name.startswith("layers.") and name.endswith((".attention", ".attention.output", ".feed_forward")):
            size = module.in_features if isinstance(module, nn.Linear) else TINY.hidden_size
            seen[name] = Range(torch.full((size,), -3.0), torch.full((size,), 3.0))
    require_same_bits(quantize_encoder(encoder, seen))


def test_a_large_network_without_memory_is_refused_with_both_numbers() -> None:
    parameters = 567_754_752  # of bge-reranker-v2-m3 without its last layers, whose export was measured
    assert needed_bytes(4 * parameters, num_heads=24 * 16, longest=8192) == pytest.approx(8.8e9, rel=0.05)
    with torch.device("meta"):
        encoder = Encoder(TINY)
        encoder.embeddings.token = torch.nn.Embedding(1 << 19, 1 << 10)  # 2 GiB, of which nothing is stored
    with pytest.raises(VerificationError, match=r"about 5\.3 GB of memory more, and 5\.0 GB are free: export it on"):
        require_memory(encoder, 5 * 10**9)
    require_memory(encoder, 6 * 10**9)
    require_memory(encoder, None)
    require_memory(Encoder(TINY), 1)  # a small one is not asked about


def test_what_is_free_is_what_linux_says_and_no_more_than_the_container_has(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert available_bytes(meminfo, tmp_path) is None
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    assert available_bytes(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 700\nactive_file 200\n")
    assert available_bytes(meminfo, tmp_path) == 2700  # files that were read are dropped where memory is wanted
