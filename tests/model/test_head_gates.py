import copy
from typing import get_args

import pytest
import torch
from torch import Tensor
from transformers import BertModel

from export.checkpoint import build_encoder
from export.families.bert import BERT
from export.graph import fold_biases, reduce_factors
from model.attention import Implementation
from model.encoder import Encoder
from model.value_stream import output_rows, reduced_factor, value_norms
from tests.networks import BERT_CONFIG, TINY, draw_weights
from tests.transformers_heads import draw_bert, moved_norms, scale_heads

TOLERANCE = 1e-5  # what the service promises; both sides in float32
IDS = torch.arange(30).reshape(3, 10)
LENGTHS = torch.tensor([10, 6, 1])
HEADS = sum(TINY.num_heads)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return draw_weights(Encoder(TINY))


@pytest.fixture(scope="module")
def theirs() -> BertModel:
    return draw_bert()


@pytest.fixture(scope="module")
def ours(theirs: BertModel) -> Encoder:
    return build_encoder(BERT.read_config(BERT_CONFIG, "mean"), BERT.read_state(theirs.state_dict(), BERT_CONFIG))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("gated", [{(0, 0): 0.0}, {(2, 3): 0.0, (1, 1): 0.5}, {(0, head): 0.0 for head in range(4)}])
def test_equals_transformers_with_the_heads_context_scaled(
    theirs: BertModel, ours: Encoder, implementation: Implementation, gated: dict[tuple[int, int], float]
) -> None:
    gates = torch.ones(2, sum(ours.config.num_heads))
    for (layer, head), gate in gated.items():
        gates[:, ours.config.head_span(layer).start + head] = gate
    ids, lengths = IDS[:2], LENGTHS[:2]
    mask = (torch.arange(10) < lengths[:, None]).long()
    with torch.inference_mode(), scale_heads(theirs, gated):
        expected = theirs(ids, attention_mask=mask).last_hidden_state
    found = ours.use(implementation)(ids, lengths, head_gates=gates).last_hidden_state
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :length], expected[row, :length], atol=TOLERANCE, rtol=0)


def test_layers_that_differ_in_heads_read_their_own_columns(encoder: Encoder) -> None:
    assert [TINY.head_span(layer) for layer in range(4)] == [slice(0, 4), slice(4, 7), slice(7, 7), slice(7, 8)]
    assert [TINY.head_place(head) for head in (0, 3, 4, 6, 7)] == [(0, 0), (0, 3), (1, 0), (1, 2), (3, 0)]
    gates = torch.ones(3, HEADS)
    for implementation in get_args(Implementation)[:2]:  # gates of 1 change no bit
        expected = encoder.use(implementation)(IDS, LENGTHS)
        assert torch.equal(encoder(IDS, LENGTHS, head_gates=gates).last_hidden_state, expected.last_hidden_state)
    gates[:, 7] = 0.0
    found, expected = encoder.use("eager")(IDS, LENGTHS, head_gates=gates), encoder(IDS, LENGTHS)
    for layer in (0, 1, 3):  # layers before the closed head, and its own weights, are as they were
        assert torch.equal(found.attentions[layer], expected.attentions[layer])
    assert (found.pooled - expected.pooled).abs().max() > 1e-3
    for shape in ((3, HEADS - 1), (2, HEADS), (3, 4, 4)):
        with pytest.raises(ValueError, match=r"expected \[B, sum of heads\] = \(3, 8\)"):
            encoder(IDS, LENGTHS, head_gates=torch.ones(shape))


def test_folded_biases_stay_the_heads_own(encoder: Encoder) -> None:
    """A closed head loses its value bias, wherever the fold put it."""
    reference = copy.deepcopy(encoder).double().use("eager")
    folded = fold_biases(reference)
    drawn = torch.rand(3, HEADS, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 1.5 - 0.25
    gates = drawn.clamp(0, 1)  # about a third of them exactly 0 or 1
    expected = reference(IDS, LENGTHS, head_gates=gates).pooled
    torch.testing.assert_close(folded(IDS, LENGTHS, head_gates=gates).pooled, expected, atol=1e-12, rtol=0)


def test_gates_have_gradients() -> None:
    """The gradient is what a small change of the gate does to the loss (central difference, float64)."""
    encoder = draw_weights(Encoder(TINY)).double()
    gates = torch.ones(3, HEADS, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(TINY.hidden_size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def loss(gates: Tensor) -> Tensor:
        pooled: Tensor = encoder(IDS, LENGTHS, head_gates=gates).pooled
        return (pooled @ direction).sum()

    (gradient,) = torch.autograd.grad(loss(gates), gates)
    for row, head in ((0, 0), (1, 5), (2, 7)):
        step = torch.zeros_like(gates)
        step[row, head] = 1e-5
        difference = (loss(gates.detach() + step) - loss(gates.detach() - step)) / 2e-5
        assert float(gradient[row, head]) == pytest.approx(float(difference), abs=1e-8)


ALL = torch.tensor([True] * TINY.num_layers)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_equals_what_transformers_heads_move(theirs: BertModel, ours: Encoder, implementation: Implementation) -> None:
    found = ours.use(implementation)(IDS, LENGTHS, norm_layers=torch.tensor([True] * 3)).value_norms
    for row, length in enumerate(LENGTHS.tolist()):
        for norms, expected in zip(found, moved_norms(theirs, IDS[row, :length].tolist()), strict=True):
            assert norms is not None
            torch.testing.assert_close(norms[row, :, :length].double(), expected, rtol=1e-5, atol=0)


def test_only_the_layers_asked_for() -> None:
    encoder = draw_weights(Encoder(TINY))
    found = encoder(IDS, LENGTHS, norm_layers=torch.tensor([True, False, True, True])).value_norms
    shapes = [(3, 4, 10), (0, 3, 0), (0, 0, 0), (3, 1, 10)]
    assert [tuple(norms.shape) for norms in found if norms is not None] == shapes
    assert encoder(IDS, LENGTHS).value_norms == (None,) * 4


def test_folding_changes_no_norm() -> None:
    encoder = draw_weights(Encoder(TINY)).double()
    folded = fold_biases(encoder)
    reduce_factors(folded)
    assert folded.get_submodule("layers.3.attention").value_factor is not None
    expected = encoder(IDS, LENGTHS, norm_layers=ALL).value_norms
    for norms, reference in zip(folded(IDS, LENGTHS, norm_layers=ALL).value_norms, expected, strict=True):
        torch.testing.assert_close(norms, reference, atol=1e-12, rtol=1e-12)


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


def test_a_value_that_adds_nothing_has_norm_0() -> None:
    null_context = torch.tensor([1.0, -2.0, 0.5, 3.0])
    factor = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(1))
    value = null_context.expand(1, 3, 4)
    assert torch.equal(value_norms(value, null_context, factor, torch.tensor(True)), torch.zeros(1, 2, 3))
