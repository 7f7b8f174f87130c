"""The options of the value stream at their neutral setting, and away from it: what changes, and whether it exports."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from benchmarks.attention.shapes import export, network
from benchmarks.lib.report import Table
from model.encoder import Encoder

ALWAYS_OPEN = 40.0  # sigmoid(40) is 1 in float32
SHAPE = ((4, 4, 4), 16, 12)
NEUTRAL: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "value residual, fixed": {"value_residual": [[0, 1]] * 3},
        "value residual, learned": {"value_residual": [[0, 1]] * 3, "learned_value_residual": True},
        "activation on values": {"value_activation": "identity"},
        "output gate": {"output_gate": True},
        "head dropout": {"head_dropout": 0.3},
    }
)
ACTIVE: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "value residual, fixed": {"value_residual": [[0, 1], [0.5, 0.5], [0.5, 0.5]]},
        "value residual, learned": {"value_residual": [[0, 1]] + [[0.5, 0.5]] * 2, "learned_value_residual": True},
        "activation on values": {"value_activation": "silu"},
        "output gate": {"output_gate": True},
        "head dropout": {"head_dropout": 0.3},
    }
)


def with_weights_of(plain: Encoder, settings: Mapping[str, Any], *, is_neutral: bool) -> Encoder:
    """The plain network with an option added; gates open in the neutral one, drawn in the other."""
    made = network(*SHAPE, **settings)
    made.load_state_dict(plain.state_dict(), strict=False)
    for name, parameter in made.named_parameters():
        if is_neutral and "stream.gate" in name:
            parameter.fill_(ALWAYS_OPEN if name.endswith("bias") else 0.0)
    return made


def identities() -> Table:
    """Largest change of the hidden state at the neutral setting and away from it; exports of the latter."""
    columns = ("option", "neutral_change", "active_change", "parameters_added", "fused", "embedding", "attention")
    table = Table("value_stream", "Options of the value stream (head dropout acts in training only)", columns)
    plain = network(*SHAPE)
    ids, lengths = torch.arange(40).reshape(2, 20), torch.tensor([20, 7])
    expected = plain(ids, lengths).last_hidden_state
    for name, settings in NEUTRAL.items():
        neutral = with_weights_of(plain, settings, is_neutral=True)
        active = with_weights_of(plain, ACTIVE[name], is_neutral=False)
        fused, parity = export(active)
        active.train(name == "head dropout")
        table.add(
            option=name,
            neutral_change=float((neutral(ids, lengths).last_hidden_state - expected).abs().max()),
            active_change=float((active(ids, lengths).last_hidden_state - expected).abs().max()),
            parameters_added=sum(x.numel() for x in active.parameters()) - sum(x.numel() for x in plain.parameters()),
            fused=fused,
            embedding=parity["pooled"],
            attention=parity["attentions"],
        )
    return table
