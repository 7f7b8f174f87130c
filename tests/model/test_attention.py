import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from model.attention import IMPLEMENTATIONS, AttentionInputs, MultiHeadAttention, eager_attention, sdpa_attention
from model.packing import packing
from model.value_stream import LayerRequest

# float32 evaluations of the same sums in another order; the values compared are of the order of 1
ROUNDING = 2e-6


def attend(
    name: str, query: Tensor, key: Tensor, value: Tensor, lengths: list[int], heads: int
) -> tuple[Tensor, Tensor | None]:
    implementation = {"eager": eager_attention, "sdpa": sdpa_attention}[name]
    scale = 1 / math.sqrt(query.shape[-1] // heads)
    wanted = torch.tensor(True)
    return implementation(AttentionInputs(query, key, value, torch.tensor(lengths), wanted, heads, scale))


def draw(batch: int, sequence: int, heads: int, d_k: int, d_v: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = (heads * d_k, heads * d_k, heads * d_v)
    query, key, value = (torch.randn(batch, sequence, size, generator=generator) for size in sizes)
    return query, key, value


def naive(query: Tensor, key: Tensor, value: Tensor, length: int, heads: int) -> Tensor:
    """Equation 1 of Vaswani et al. 2017, one head, one query at a time; [n, H*V] of one text in float64."""
    q, k, v = (x[:length].double().chunk(heads, dim=-1) for x in (query, key, value))
    rows = []
    for i in range(length):
        parts = []
        for head in range(heads):
            scores = torch.tensor([float(q[head][i] @ k[head][j]) / math.sqrt(q[head].shape[1]) for j in range(length)])
            weights = torch.exp(scores.double() - scores.max()) / torch.exp(scores.double() - scores.max()).sum()
            parts.append(sum((weights[j] * v[head][j] for j in range(length)), start=torch.zeros(v[head].shape[1])))
        rows.append(torch.cat(parts))
    return torch.stack(rows)


@pytest.mark.parametrize("name", ["eager", "sdpa"])
@pytest.mark.parametrize(("heads", "d_k", "d_v"), [(1, 8, 8), (4, 3, 5), (6, 1, 1), (2, 16, 1)])
def test_equals_the_equation_written_out(name: str, heads: int, d_k: int, d_v: int) -> None:
    query, key, value = draw(2, 5, heads, d_k, d_v)
    context, _ = attend(name, query, key, value, [5, 3], heads)
    for row, length in enumerate((5, 3)):
        expected = naive(query[row], key[row], value[row], length, heads)
        torch.testing.assert_close(context[row, :length].double(), expected, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_equals_torchs_multi_head_attention_with_the_same_weights(name: str) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(24, 4, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = MultiHeadAttention(hidden_size=24, num_heads=4, d_k=6, d_v=6)
    weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
    for linear, weight, bias in zip((ours.query, ours.key, ours.value), weights, biases, strict=True):
        linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)
    ours.output.load_state_dict(theirs.out_proj.state_dict())
    ours.implementation = "eager" if name == "eager" else "sdpa"
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
    context, weights = attend("eager", query, key, value, [length] * batch, heads)
    assert weights is not None
    torch.testing.assert_close(weights.sum(-1), torch.ones(batch, heads, length + padding), atol=1e-6, rtol=0)
    assert (weights >= 0).all()
    assert (weights[..., length:] == 0).all()
    alone, _ = attend("eager", query[:1, :length], key[:1, :length], value[:1, :length], [length], heads)
    torch.testing.assert_close(context[:1, :length], alone, atol=ROUNDING, rtol=0)


def test_permuting_the_tokens_permutes_the_weights() -> None:
    query, key, value = draw(1, 6, 2, 4, 4)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    _, weights = attend("eager", query, key, value, [6], 2)
    _, permuted = attend("eager", query[:, order], key[:, order], value[:, order], [6], 2)
    assert weights is not None
    assert permuted is not None
    torch.testing.assert_close(permuted, weights[:, :, order][..., order], atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_a_row_without_tokens_gives_zeros(name: str) -> None:
    query, key, value = draw(2, 4, 2, 3, 3)
    context, weights = attend(name, query, key, value, [4, 0], 2)
    assert (context[1] == 0).all()
    assert weights is None or (weights[1] == 0).all()


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 32, 64])
def test_the_number_of_parameters_does_not_depend_on_the_number_of_heads(heads: int) -> None:
    attention = MultiHeadAttention(hidden_size=64, num_heads=heads, d_k=64 // heads, d_v=64 // heads)
    assert sum(parameter.numel() for parameter in attention.parameters()) == 4 * 64**2 + 4 * 64


def test_free_head_sizes_have_the_parameters_of_the_formula() -> None:
    hidden, heads, d_k, d_v = 24, 5, 3, 7
    attention = MultiHeadAttention(hidden_size=hidden, num_heads=heads, d_k=d_k, d_v=d_v)
    expected = hidden * heads * (2 * d_k + 2 * d_v) + heads * (2 * d_k + d_v) + hidden
    assert sum(parameter.numel() for parameter in attention.parameters()) == expected


def test_a_layer_without_heads_adds_its_output_bias() -> None:
    attention = MultiHeadAttention(hidden_size=4, num_heads=0, d_k=2, d_v=2)
    nn.init.normal_(attention.output_bias)
    tokens = packing(torch.tensor([3, 1]), 3)
    found, (weights, _) = attention(torch.randn(4, 4), tokens, LayerRequest(torch.tensor(True)))
    assert torch.equal(found, attention.output_bias.expand(4, 4))
    assert weights is not None
    assert weights.numel() == 0


def test_offers_three_implementations() -> None:
    assert set(IMPLEMENTATIONS) == {"eager", "sdpa", "onnx"}
