"""The exported graphs of networks unlike BERT: fused in every layer, a text's bits its own, refusals by name."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from export.graph import trace
from export.int8.quantize import quantize_encoder, see_ranges
from export.precision import TOLERANCES
from export.runtime import Session
from export.verify import verify
from model.artifact import attentions_name
from model.encoder import Encoder
from tests.networks import batch_of, draw_weights, random_batches, vary

LONGEST = 24
CHANGES: dict[str, dict[str, Any]] = {
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
NETWORKS = {name: vary(type_vocab_size=0, **change) for name, change in CHANGES.items()}


FAST = ("relative", "local")  # a bias a head; and rotary, pre-norm and gated, with a window


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in NETWORKS]
)
def drawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Path]:
    encoder = draw_weights(Encoder(NETWORKS[request.param]))
    path = tmp_path_factory.mktemp(request.param) / "model.onnx"
    onnx_ir.save(trace(encoder), path)
    return encoder, path


@pytest.fixture(scope="module")
def session(drawn: tuple[Encoder, Path]) -> Session:
    return Session(drawn[1], threads=1)


@given(
    lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=6),
    padding=st.integers(0, 8),
    place=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=settings().max_examples // 4)
def test_a_text_gives_the_same_bits_alone_and_in_any_batch(
    drawn: tuple[Encoder, Path], session: Session, lengths: list[int], padding: int, place: int, seed: int
) -> None:
    config, generator = drawn[0].config, np.random.default_rng(seed)
    rows = [generator.integers(0, 48, length) for length in lengths]
    place %= len(rows)
    alone = session.run(batch_of(config, [rows[place]], layers=(0, 1)))
    assert np.array_equal(session.run(batch_of(config, rows, padding))["pooled"][place], alone["pooled"][0])
    weights = session.run(batch_of(config, rows, padding, layers=(0, 1)))[attentions_name(1)][place]
    length = lengths[place]
    assert np.array_equal(weights[:, :length, :length], alone[attentions_name(1)][0])


def test_every_graph_verifies_and_holds_a_shared_weight_once(drawn: tuple[Encoder, Path]) -> None:
    encoder, path = drawn
    fused, parity = verify(path, encoder, tolerance=TOLERANCES["fp32"])
    assert fused == {"ai.onnx.Attention": 2}
    assert max(parity[kind] for kind in ("pooled", "attentions", "value_norms", "gated")) < 2e-5
    if encoder.config.shared_layers:
        initializers = onnx_ir.load(path).graph.initializers.values()
        stored = sum(value.const_value.nbytes for value in initializers if value.const_value)
        once = sum(parameter.nbytes for parameter in encoder.parameters())  # PyTorch counts a shared one once
        assert stored == pytest.approx(once, rel=0.05)  # all but biases that were folded


@pytest.mark.slow
def test_int8_takes_relative_positions(tmp_path: Path) -> None:
    encoder = draw_weights(Encoder(vary(type_vocab_size=0, attention_positions="relative")))
    batches = random_batches(1, count=4)
    quantized = quantize_encoder(encoder, see_ranges(encoder, batches))
    ids, lengths = batches[0].input_ids, batches[0].lengths
    with torch.inference_mode():
        found, expected = (network.use("eager")(ids, lengths).pooled for network in (quantized, encoder))
    assert torch.cosine_similarity(found, expected).min() > 0.999
    onnx_ir.save(trace(quantized), tmp_path / "model.onnx")
    fused, _ = verify(tmp_path / "model.onnx", quantized, tolerance=TOLERANCES["int8"])
    assert fused == {"ai.onnx.Attention": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", "local"])
def test_half_precision(tmp_path: Path, name: str) -> None:
    encoder = draw_weights(Encoder(NETWORKS[name]))
    for parameter in encoder.parameters():
        parameter.mul_(0.5 if parameter.ndim > 1 else 1.0)  # drawn for float32: gates multiply what 11 bits round
    onnx_ir.save(trace(copy.deepcopy(encoder).to(torch.float16)), tmp_path / "model.onnx")
    fused, _ = verify(tmp_path / "model.onnx", encoder, tolerance=TOLERANCES["fp16"])
    assert fused == {"ai.onnx.Attention": 2}
