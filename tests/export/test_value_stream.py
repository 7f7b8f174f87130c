"""Networks whose values are more than weighed: folded exactly, exported with one fused operator a layer."""

from pathlib import Path
from typing import Any

import onnx_ir
import pytest
import torch

from export.errors import UnsupportedModel
from export.fold import fold_biases
from export.graph import trace
from export.int8.quantize import quantize_encoder
from export.precision import TOLERANCES
from export.verify import verify
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.networks import TINY, draw_weights

RESIDUAL = [(0, 1), (0.5, 0.5), (-0.25, 1.5)]
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
    settings = {**TINY.to_dict(), "num_heads": [4, 4, 4], **change}
    return draw_weights(Encoder(EncoderConfig.from_dict(settings)))


@pytest.mark.parametrize("change", [*CHANGES, ALL], ids=str)
def test_folding_changes_nothing(change: dict[str, Any]) -> None:
    encoder = network(**change).double()
    folded, removed = fold_biases(encoder)
    assert removed == (6 if set(change) == {"head_dropout"} else 3)  # a value bias that is not only weighed stays
    ids, lengths = torch.arange(24).reshape(2, 12), torch.tensor([12, 5])
    gates = torch.rand(2, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for given in (None, gates):
        expected = encoder.use("eager")(ids, lengths, head_gates=given)
        found = folded.use("eager")(ids, lengths, head_gates=given)
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
    ],
    ids=str,
)
def test_the_graph_verifies_with_one_fused_operator_a_layer(change: dict[str, Any], tmp_path: Path) -> None:
    encoder = network(**change)
    onnx_ir.save(trace(encoder), tmp_path / "model.onnx")
    fused, parity = verify(tmp_path / "model.onnx", encoder, tolerance=TOLERANCES["fp32"])
    assert fused == {"ai.onnx.Attention": 3}
    assert parity["last_hidden_state"] < 1e-5


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"value_residual": RESIDUAL}, "value_residual"),
        ({"value_activation": "relu"}, "value_activation 'relu'"),
        ({"output_gate": True}, "output_gate True"),
    ],
)
def test_int8_refuses_what_it_would_leave_out(change: dict[str, Any], part: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"no 8-bit form of {part}"):
        quantize_encoder(network(**change), {})
