import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from model.attention import (
    AttentionImplementation,
    AttentionInputs,
    Implementation,
    MultiHeadAttention,
    eager_attention,
    sdpa_attention,
)
from model.packing import packing
from model.value_stream import LayerRequest

# float32 evaluations of the same sums in another order; the values compared are of the order of 1
ROUNDING = 2e-6


def attend(
    implementation: AttentionImplementation, query: Tensor, key: Tensor, value: Tensor, lengths: list[int], heads: int
) -> tuple[Tensor, Tensor | None]:
    scale, wanted = 1 / math.sqrt(query.shape[-1] // heads), torch.tensor(True)
    return implementation(AttentionInputs(query, key, value, torch.tensor(lengths), wanted, heads, scale))


def draw(batch: int, sequence: int, heads: int, d_k: int, d_v: int, seed: int = 0) -> tuple[Tensor, ...]:
    generator, sizes = torch.Generator().manual_seed(seed), (heads * d_k, heads * d_k, heads * d_v)
    return tuple(torch.randn(batch, sequence, size, generator=generator) for size in sizes)


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_equals_torchs_multi_head_attention_with_the_same_weights(name: Implementation) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(24, 4, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = MultiHeadAttention(hidden_size=24, num_heads=4, d_k=6, d_v=6)
    weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
    for linear, weight, bias in zip((ours.query, ours.key, ours.value), weights, biases, strict=True):
        linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)
    ours.output.load_state_dict(theirs.out_proj.state_dict())
    ours.implementation = name
    hidden, lengths = torch.randn(3, 7, 24), torch.tensor([7, 4, 1])
    padding = torch.arange(7) >= lengths[:, None]
    expected, expected_weights = theirs(
        hidden, hidden, hidden, key_padding_mask=padding, need_weights=True, average_attn_weights=False
    )
    tokens = packing(lengths, 7)
    found, (found_weights, _) = ours(tokens.pack(hidden), tokens, LayerRequest(torch.tensor(True)))
    found = tokens.pad(found)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :length], expected[row, :length], atol=ROUNDING, rtol=0)
        if found_weights is not None:
            weights_pair = found_weights[row, :, :length], expected_weights[row, :, :length]
            torch.testing.assert_close(*weights_pair, atol=ROUNDING, rtol=0)
    assert (found_weights is not None) == (name == "eager")


@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 9),
    padding=st.integers(0, 5),
    heads=st.integers(1, 4),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    seed=st.integers(0, 10_000),
)
def test_weights_are_a_distribution_over_real_keys_and_padding_changes_nothing(
    batch: int, length: int, padding: int, heads: int, sizes: tuple[int, int], seed: int
) -> None:
    query, key, value = draw(batch, length + padding, heads, *sizes, seed=seed)
    context, weights = attend(eager_attention, query, key, value, [length] * batch, heads)
    assert weights is not None
    torch.testing.assert_close(weights.sum(-1), torch.ones(batch, heads, length + padding), atol=1e-6, rtol=0)
    assert (weights >= 0).all()
    assert (weights[..., length:] == 0).all()
    alone, _ = attend(eager_attention, query[:1, :length], key[:1, :length], value[:1, :length], [length], heads)
    torch.testing.assert_close(context[:1, :length], alone, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("implementation", [eager_attention, sdpa_attention])
def test_a_row_without_tokens_gives_zeros(implementation: AttentionImplementation) -> None:
    query, key, value = draw(2, 4, 2, 3, 3)
    context, weights = attend(implementation, query, key, value, [4, 0], 2)
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
