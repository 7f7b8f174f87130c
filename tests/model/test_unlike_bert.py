"""Settings of networks unlike BERT, alone and together, against `tests.loop_reference`."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import EncoderConfig
from model.encoder import Encoder
from tests.loop_reference import run
from tests.networks import draw_weights, vary

ROUNDING = {"rotary": 1e-6, "none": 1e-11}  # angles are float32 tables, as the networks were trained with
LENGTHS = (9, 5, 1)
PLAIN = vary(num_heads=(6, 6), type_vocab_size=0, positions="none")
MIXES = ((0, 1), (-0.25, 1.5))
ALONE: dict[str, dict[str, Any]] = {  # what `configs` does not draw
    "neutral": {},
    "as BERT": {"type_vocab_size": 2, "positions": "learned"},  # of type 0 unless said otherwise
    "layers that differ in heads": {"num_heads": (4, 3, 0, 1)},
    "groups of three": {"num_key_value_heads": (2, 2)},
    "one key head": {"num_key_value_heads": (1, 6)},
    "queries and keys normed whole": {"query_key_layer_norm": True, "num_key_value_heads": (2, 6)},
    "shared layers": {"shared_layers": (0, 0)},
    "value residual": {"value_residual": MIXES},
    "learned value residual": {"value_residual": MIXES, "learned_value_residual": True},
    "the first layer's values alone": {"value_residual": ((0, 1), (1, 0))},
    "activated values": {"value_activation": "silu"},
    "output gate": {"output_gate": True},
    "value stream": {"value_residual": MIXES, "value_activation": "silu", "output_gate": True},
    "values behind a norm": {"value_residual": MIXES, "pre_norm": True, "final_norm": True},
}


@st.composite
def configs(draw: st.DrawFn) -> EncoderConfig:
    """Networks with any of the settings."""
    is_local, is_pre, is_rotary = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    normed = draw(st.sampled_from(["", "a head", "whole"]))
    groups = draw(st.sampled_from([(), ((6,), (2, 4)), ((1, 1, 4), (3, 3)), ((2, 2, 2), (1,) * 6)]))
    return replace(
        PLAIN,
        d_k=draw(st.sampled_from([2, 6, 8])),
        num_key_value_heads=tuple(map(len, groups)),
        query_groups=groups,
        query_key_norm=normed == "a head",
        query_key_layer_norm=normed == "whole",
        attention_residual_norm=not is_pre and draw(st.booleans()),
        score_scale=draw(st.sampled_from([None, 1.0, 0.3])),
        causal=draw(st.booleans()),
        local_layers=(1,) if is_local else (),
        window=draw(st.integers(0, 4)) if is_local else None,
        attention_positions="rotary" if is_rotary else "none",
        local_rope_theta=50.0 if is_local and is_rotary else None,
        pre_norm=is_pre,
        sandwich_norm=is_pre and draw(st.booleans()),
        final_norm=is_pre,
        embedding_norm=draw(st.booleans()),
        norm=draw(st.sampled_from(["layer_norm", "rms_norm"])),
        gated=draw(st.booleans()),
        activation=draw(st.sampled_from(["gelu", "silu", "relu"])),
        attention_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
    )


def compare(config: EncoderConfig, seed: int = 0) -> None:
    encoder = draw_weights(Encoder(config), seed).double()
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocab_size, (3, 10), generator=generator)
    gates = torch.rand(3, sum(config.num_heads), generator=generator, dtype=torch.float64)
    gates[0] = 1
    asked = torch.tensor([True] * config.num_layers)
    with torch.inference_mode():
        eager, sdpa = (
            encoder.use(name)(ids, torch.tensor(LENGTHS), head_gates=gates, norm_layers=asked)
            for name in ("eager", "sdpa")
        )
    tolerance = ROUNDING[config.attention_positions]
    close = partial(torch.testing.assert_close, atol=tolerance, rtol=tolerance)
    for row, length in enumerate(LENGTHS):
        of_layers = [gates[row, config.head_span(layer)].tolist() for layer in range(config.num_layers)]
        expected = run(config, encoder.state_dict(), ids[row, :length], of_layers)
        close(sdpa.last_hidden_state[row, :length], expected.hidden)
        close(eager.last_hidden_state[row, :length], expected.hidden)
        for layer, (weights, norms) in enumerate(zip(expected.weights, expected.norms, strict=True)):
            if not config.num_heads[layer]:
                continue
            close(eager.attentions[layer][row, :, :length, :length], weights)
            assert not eager.attentions[layer][row, :, :length, length:].any()
            close(eager.value_norms[layer][row, :, :length], norms)


@pytest.mark.parametrize("change", ALONE.values(), ids=list(ALONE))
def test_each_setting_alone(change: dict[str, Any]) -> None:
    compare(replace(PLAIN, **change))


@given(config=configs(), seed=st.integers(0, 1000))
@settings(max_examples=settings().max_examples // 4)
def test_settings_together(config: EncoderConfig, seed: int) -> None:
    assert EncoderConfig.from_dict(config.to_dict()) == config
    compare(config, seed)
