"""The encoder: its parts by hand, and whole with settings unlike BERT against `tests.loop_reference`."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from model.attention import AttentionImplementation, AttentionInputs, Implementation, eager_attention, sdpa_attention
from model.config import EncoderConfig
from model.config_parts import Projection
from model.encoder import Encoder
from model.initialise import initialise
from model.layers import SignalReader
from model.positions import sinusoids
from model.tasks import POOLINGS
from model.value_stream import LayerRequest, ValueStream, output_rows, reduced_factor, value_norms
from tests.loop_reference import run
from tests.networks import TINY, draw_weights, vary

MODELS = Path(__file__).parents[2] / "docs" / "models.md"
THREE_MIXES = ((0, 1), (0.5, 0.5), (-0.25, 1.5))
IDS, SIZES = torch.arange(60).reshape(5, 12) % 48, torch.tensor([12, 1, 5, 7, 3])


@pytest.mark.parametrize("implementation", [eager_attention, sdpa_attention])
def test_a_row_without_tokens_gives_zeros(implementation: AttentionImplementation) -> None:
    query, key, value = torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    inputs = AttentionInputs(query, key, value, torch.tensor([4, 0]), torch.tensor(True), num_heads=2, scale=1.0)
    context, weights = implementation(inputs)
    assert (context[1] == 0).all()
    assert weights is None or (weights[1] == 0).all()


def test_projections_are_applied_to_the_pooled_vector() -> None:
    last = Projection(size=5, bias=False, activation="identity")
    config = replace(TINY, projections=(Projection(size=3), last))
    encoder = draw_weights(Encoder(config))
    without = Encoder(TINY).eval()
    without.load_state_dict(encoder.state_dict(), strict=False)
    first, bias, second = (
        encoder.get_parameter(f"task_layers.projections.{name}") for name in ("0.weight", "0.bias", "1.weight")
    )
    expected = torch.tanh(without(IDS, SIZES).pooled @ first.T + bias) @ second.T
    torch.testing.assert_close(encoder(IDS, SIZES).pooled, expected, atol=1e-6, rtol=0)
    assert config.embedding_size == 5


@pytest.mark.parametrize("shares", [{"hidden": 0.3}, {"heads": 0.5}])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_what_is_left_out_is_left_out_in_training_only(shares: dict[str, float], pre_norm: bool) -> None:
    encoder = draw_weights(Encoder(replace(TINY, pre_norm=pre_norm)))
    whole = encoder(IDS, SIZES).pooled
    encoder.set_dropout(**shares)
    assert torch.equal(encoder(IDS, SIZES).pooled, whole)
    assert not torch.equal(encoder.train()(IDS, SIZES).pooled, whole)
    assert torch.equal(encoder.set_dropout()(IDS, SIZES).pooled, whole)


def test_training_leaves_a_bias_that_the_family_lacks_at_0() -> None:
    encoder = draw_weights(Encoder(replace(TINY, num_heads=(4, 0), output_bias=False))).requires_grad_(True)
    assert "layers.1.attention.output_bias" not in {name for name, _ in encoder.named_parameters()}
    assert torch.equal(encoder.state_dict()["layers.1.attention.output_bias"], torch.zeros(32))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    encoder(IDS, SIZES).pooled.square().sum().backward()
    optimizer.step()
    assert torch.equal(encoder.state_dict()["layers.1.attention.output_bias"], torch.zeros(32))


LARGE = replace(TINY, vocab_size=2000, hidden_size=64, num_heads=(4, 4), intermediate_size=256)


def test_weights_are_drawn_as_bert_draws_them() -> None:
    reference = BertModel(
        BertConfig(vocab_size=2000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
    )
    expected = {tuple(p.shape): (p.mean().item(), p.std().item()) for p in reference.parameters() if p.numel() > 10_000}
    own = {tuple(p.shape): (p.mean().item(), p.std().item()) for p in initialise(Encoder(LARGE), 0).parameters()}
    shared = expected.keys() & own.keys()
    assert len(shared) >= 2
    for shape in shared:
        assert own[shape][0] == pytest.approx(expected[shape][0], abs=1e-3)
        assert own[shape][1] == pytest.approx(expected[shape][1], rel=0.05)


def test_biases_are_0_and_factors_1() -> None:
    encoder = initialise(Encoder(replace(LARGE, layer_signal_size=8)), 0)
    factors = {id(m.weight) for m in encoder.modules() if isinstance(m, nn.LayerNorm)}
    factors |= {id(m.layer_scalar) for m in encoder.modules() if isinstance(m, SignalReader)}
    for parameter in encoder.parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.full_like(parameter, float(id(parameter) in factors)))


@pytest.mark.parametrize("shared", [(), (0, 0)])
def test_a_pre_norm_network_scales_what_is_added(shared: tuple[int, ...]) -> None:
    plain, scaled = (initialise(Encoder(replace(LARGE, pre_norm=p, shared_layers=shared)), 0) for p in (False, True))
    for name, parameter in plain.named_parameters():
        is_added = name.endswith(("attention.output.weight", "down.weight"))
        factor = 1 / math.sqrt(2 * 2) if is_added else 1.0
        torch.testing.assert_close(dict(scaled.named_parameters())[name], factor * parameter)


def test_the_seed_decides_all_but_where_the_mix_of_a_value_residual_begins() -> None:
    config = replace(LARGE, value_residual=((0.0, 1.0), (0.3, 0.7)), learned_value_residual=True)
    first, again, other = (initialise(Encoder(config), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embeddings.token.weight"], other["embeddings.token.weight"])
    assert first["layers.1.attention.stream.mix"].tolist() == pytest.approx([0.3, 0.7])


HIDDEN = torch.tensor([[[1.0, -5.0], [3.0, -1.0], [99.0, 99.0]], [[2.0, 4.0], [99.0, -99.0], [99.0, 99.0]]])


def test_real_tokens_alone_are_pooled() -> None:
    expected = {
        "mean": [[2.0, -3.0], [2.0, 4.0]],
        "cls": [[1.0, -5.0], [2.0, 4.0]],
        "max": [[3.0, -1.0], [2.0, 4.0]],
        "last": [[3.0, -1.0], [2.0, 4.0]],
    }
    assert {name: pool(HIDDEN, torch.tensor([2, 1])).tolist() for name, pool in POOLINGS.items()} == expected
    assert torch.equal(POOLINGS["mean"](HIDDEN, torch.tensor([0, 0])), torch.zeros(2, 2))
    long = torch.full((1, 8192, 2), 8.5, dtype=torch.float16)  # the sum is 69,632, float16 ends at 65,504
    assert POOLINGS["mean"](long, torch.tensor([8192])).tolist() == [[8.5, 8.5]]


def test_sinusoids_are_those_of_the_paper() -> None:
    found = sinusoids(50, 6)
    for position in range(50):
        for pair in range(3):
            angle = position / 10000 ** (2 * pair / 6)
            assert found[position, 2 * pair] == pytest.approx(math.sin(angle), abs=1e-7)
            assert found[position, 2 * pair + 1] == pytest.approx(math.cos(angle), abs=1e-7)


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


def network(**change: Any) -> Encoder:
    return draw_weights(Encoder(vary(num_heads=(4, 4, 4), **change)))


def test_learned_factors_are_parameters_and_fixed_ones_are_not() -> None:
    learned = network(value_residual=THREE_MIXES, learned_value_residual=True)
    names = [name for name in learned.state_dict() if name.endswith("stream.mix")]
    assert names == ["layers.1.attention.stream.mix", "layers.2.attention.stream.mix"]
    made = Encoder(learned.config)
    assert torch.equal(made.state_dict()[names[1]], torch.tensor(THREE_MIXES[2]))
    made(IDS, SIZES).pooled.sum().backward()
    assert all(parameter.grad is not None for name, parameter in made.named_parameters() if name.endswith("mix"))
    assert network(value_residual=THREE_MIXES).state_dict().keys() == network().state_dict().keys()


def test_the_first_layers_values_are_computed_once() -> None:
    encoder = network(value_residual=THREE_MIXES)
    runs: list[int] = []
    encoder.get_submodule("layers.0.attention.value").register_forward_hook(lambda *_: runs.append(1))
    encoder(IDS, SIZES)
    assert len(runs) == 1


def drop(share: float, texts: int, gates: Tensor | None = None) -> Tensor:
    """Gates that are drawn, the same for every call of as many texts."""
    torch.manual_seed(0)
    stream = ValueStream(hidden_size=8, num_heads=4, head_dropout=share).train()
    request = LayerRequest(torch.tensor(False), head_gates=gates)
    found = stream.drop_heads(request, torch.ones(texts, dtype=torch.int64)).gates(4)
    assert found is not None
    return found


def test_head_dropout_leaves_out_whole_heads_a_text_and_counts_the_rest_more() -> None:
    gates = drop(0.4, 20_000)
    kept = (gates > 0).sum(dim=1)
    assert (kept >= 1).all()
    torch.testing.assert_close(gates.sum(dim=1), torch.full((20_000,), 4.0))
    # 20,000 texts: the mean of a gate is within 5 standard errors, 5 * sd / 141 < 0.04, of 1 and the share of 0.4
    assert (gates.mean(dim=0) - 1).abs().max() < 0.04
    none_left = 0.4**4  # those keep all
    assert abs(float((gates == 0).double().mean()) - (0.4 - none_left)) < 0.02
    asked = torch.rand(6, 4, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(drop(0.5, 6, asked), drop(0.5, 6) * asked)


def test_the_documented_network_is_one() -> None:
    section = MODELS.read_text(encoding="utf-8").split("\n## Your own shapes")[1]
    shown = json.loads(section.split("```json")[1].split("```")[0])
    assert shown.pop("model_type") == "polyhead"
    assert Encoder(EncoderConfig.from_dict(shown)).eval()(IDS, SIZES).pooled.shape == (5, 64)


def test_layers_that_differ_in_heads_read_their_own_columns() -> None:
    encoder, gates = draw_weights(Encoder(TINY)), torch.ones(5, 8)
    assert [TINY.head_span(layer) for layer in range(4)] == [slice(0, 4), slice(4, 7), slice(7, 7), slice(7, 8)]
    assert [TINY.head_place(head) for head in (0, 3, 4, 6, 7)] == [(0, 0), (0, 3), (1, 0), (1, 2), (3, 0)]
    for implementation in get_args(Implementation)[:2]:  # gates of 1 change no bit
        expected = encoder.use(implementation)(IDS, SIZES)
        assert torch.equal(encoder(IDS, SIZES, head_gates=gates).last_hidden_state, expected.last_hidden_state)
    gates[:, 7] = 0.0
    found, expected = encoder.use("eager")(IDS, SIZES, head_gates=gates), encoder(IDS, SIZES)
    for layer in (0, 1, 3):  # layers before the closed head, and its own weights, are as they were
        assert torch.equal(found.attentions[layer], expected.attentions[layer])
    assert (found.pooled - expected.pooled).abs().max() > 1e-3
    assert found.value_norms == (None,) * 4  # that no one asked for


@pytest.mark.parametrize(("heads", "d_v", "hidden"), [(3, 4, 32), (2, 8, 5), (1, 1, 1)])
def test_a_short_factor_gives_vectors_of_the_same_length(heads: int, d_v: int, hidden: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(hidden, heads * d_v, generator=generator, dtype=torch.float64)
    value = torch.randn(2, 7, heads * d_v, generator=generator, dtype=torch.float64)
    rows = output_rows(weight, heads)
    factor = reduced_factor(rows)
    assert factor.shape == (heads, d_v, min(d_v, hidden))
    found = value_norms(value, None, factor, torch.tensor(True))
    for text in range(2):
        moved = value[text].view(7, heads, d_v).transpose(0, 1) @ rows
        torch.testing.assert_close(found[text], moved.norm(dim=-1), rtol=1e-6, atol=0)
