"""The encoder and its positions."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from model.attention import (
    AttentionImplementation,
    AttentionInputs,
    MultiHeadAttention,
    eager_attention,
    sdpa_attention,
)
from model.config_parts import Projection
from model.encoder import Encoder
from model.initialise import initialise
from model.layers import SignalReader
from model.packing import packing
from model.positions import DistanceRows, sinusoids
from model.tasks import POOLINGS
from model.value_stream import LayerRequest
from tests.networks import TINY, draw_weights, vary


@pytest.mark.parametrize("implementation", [eager_attention, sdpa_attention])
def test_a_row_without_tokens_gives_zeros(implementation: AttentionImplementation) -> None:
    query, key, value = torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    inputs = AttentionInputs(query, key, value, torch.tensor([4, 0]), torch.tensor(True), num_heads=2, scale=1.0)
    context, weights = implementation(inputs)
    assert (context[1] == 0).all()
    assert weights is None or (weights[1] == 0).all()


def test_a_layer_without_heads_adds_its_output_bias() -> None:
    attention = MultiHeadAttention(hidden_size=4, num_heads=0, d_k=2, d_v=2)
    nn.init.normal_(attention.output_bias)
    tokens = packing(torch.tensor([3, 1]), 3)
    found, (weights, _) = attention(torch.randn(4, 4), tokens, LayerRequest(torch.tensor(True)))
    assert torch.equal(found, attention.output_bias.expand(4, 4))
    assert weights is not None
    assert weights.numel() == 0


def test_projections_are_applied_to_the_pooled_vector() -> None:
    last = Projection(size=5, bias=False, activation="identity")
    config = replace(TINY, projections=(Projection(size=3), last))
    encoder = draw_weights(Encoder(config))
    without = Encoder(TINY)
    without.load_state_dict({name: t for name, t in encoder.state_dict().items() if not name.startswith("task_layers")})
    ids, lengths = torch.arange(8).reshape(1, 8), torch.tensor([8])
    first, bias, second = (
        encoder.get_parameter(f"task_layers.projections.{name}") for name in ("0.weight", "0.bias", "1.weight")
    )
    expected = torch.tanh(without.eval()(ids, lengths).pooled @ first.T + bias) @ second.T
    torch.testing.assert_close(encoder(ids, lengths).pooled, expected, atol=1e-6, rtol=0)
    assert config.embedding_size == 5


DROPPED_IDS = torch.randint(0, 48, (5, 12), generator=torch.Generator().manual_seed(0))
DROPPED_LENGTHS = torch.tensor([12, 1, 5, 7, 3])


@pytest.mark.parametrize("shares", [{"hidden": 0.3}, {"heads": 0.5}])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_what_is_left_out_is_left_out_in_training_only(shares: dict[str, float], pre_norm: bool) -> None:
    encoder = draw_weights(Encoder(replace(TINY, pre_norm=pre_norm)))
    whole = encoder(DROPPED_IDS, DROPPED_LENGTHS).pooled
    encoder.set_dropout(**shares)
    assert torch.equal(encoder(DROPPED_IDS, DROPPED_LENGTHS).pooled, whole)
    assert not torch.equal(encoder.train()(DROPPED_IDS, DROPPED_LENGTHS).pooled, whole)
    assert torch.equal(encoder.set_dropout()(DROPPED_IDS, DROPPED_LENGTHS).pooled, whole)


def test_training_leaves_a_bias_that_the_family_lacks_at_0() -> None:
    encoder = draw_weights(Encoder(replace(TINY, num_heads=(4, 0), output_bias=False))).requires_grad_(True)
    assert "layers.1.attention.output_bias" not in {name for name, _ in encoder.named_parameters()}
    assert torch.equal(encoder.state_dict()["layers.1.attention.output_bias"], torch.zeros(32))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    encoder(DROPPED_IDS, DROPPED_LENGTHS).pooled.square().sum().backward()
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


def test_rows_of_distances_are_those_of_deberta() -> None:
    found = DistanceRows(vary(relative_buckets=32, relative_distance=64, max_positions=90))(
        packing(torch.tensor([70, 3]), 70)
    )
    theirs = make_log_bucket_position(torch.arange(69, -70, -1), 16, 64).long()
    assert torch.equal(found, (theirs + 16).clamp(0, 31))


@pytest.mark.parametrize("kind", ["alibi", "relative"])
def test_a_layer_that_lost_some_or_all_heads_keeps_the_bias_of_those_it_has(kind: str) -> None:
    whole = draw_weights(Encoder(vary(num_heads=(4, 4), attention_positions=kind)))
    kept = ((0, 2, 3), (1,))
    pruned = Encoder(vary(num_heads=(3, 1), attention_positions=kind, original_heads=4, kept_heads=kept))
    pruned.load_state_dict({name: _kept(name, tensor, kept) for name, tensor in whole.state_dict().items()})
    gates = torch.zeros(2, 8)
    gates[:, [0, 2, 3, 5]] = 1
    ids, lengths = torch.arange(24).view(2, 12), torch.tensor([12, 7])
    with torch.no_grad():
        expected, found = whole(ids, lengths, head_gates=gates), pruned(ids, lengths)
    torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-5, rtol=0)
    none = draw_weights(Encoder(vary(attention_positions=kind, num_heads=(0, 0))))  # needs no bias
    assert torch.isfinite(none(ids, lengths).pooled).all()


def _kept(name: str, tensor: torch.Tensor, kept: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    """The rows or columns of the heads that a layer kept; d_k 8, d_v 5."""
    if ".attention." not in name:
        return tensor
    heads = kept[int(name.split(".")[1])]
    size = 5 if "value" in name or "output" in name else 8
    places = torch.cat([torch.arange(size) + size * head for head in heads])
    if name.endswith("output.bias"):
        return tensor
    return tensor[:, places] if name.endswith("output.weight") else tensor[places]
