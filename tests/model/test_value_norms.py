import copy

import pytest
import torch
from transformers import BertModel

from export.checkpoint import build_encoder
from export.families import bert
from export.fold import fold_biases, reduce_factors
from model.analysis.norms import value_norms as by_definition
from model.dot_product import Implementation
from model.encoder import Encoder
from model.value_norms import output_rows, reduced_factor, value_norms
from tests.networks import BERT_CONFIG, TINY, draw_weights
from tests.transformers_heads import draw_bert, moved_norms

IDS = torch.arange(30).reshape(3, 10)
LENGTHS = torch.tensor([10, 6, 1])
ALL = torch.tensor([True] * TINY.num_layers)


@pytest.fixture(scope="module")
def theirs() -> BertModel:
    return draw_bert()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_equals_what_transformers_heads_move(theirs: BertModel, implementation: Implementation) -> None:
    config = bert.read_config(BERT_CONFIG, "mean")
    ours = build_encoder(config, bert.read_state(theirs.state_dict(), BERT_CONFIG)).use(implementation)
    found = ours(IDS, LENGTHS, norm_layers=torch.tensor([True] * 3)).value_norms
    for row, length in enumerate(LENGTHS.tolist()):
        for norms, expected in zip(found, moved_norms(theirs, IDS[row, :length].tolist()), strict=True):
            assert norms is not None
            torch.testing.assert_close(norms[row, :, :length].double(), expected, rtol=1e-5, atol=0)


def test_only_the_layers_asked_for() -> None:
    encoder = draw_weights(Encoder(TINY))
    found = encoder(IDS, LENGTHS, norm_layers=torch.tensor([True, False, True, True])).value_norms
    assert [tuple(norms.shape) for norms in found if norms is not None] == [
        (3, 4, 10),
        (0, 3, 0),
        (0, 0, 0),
        (3, 1, 10),
    ]
    assert encoder(IDS, LENGTHS).value_norms == (None,) * 4


def test_folding_changes_no_norm() -> None:
    encoder = draw_weights(Encoder(TINY)).double()
    folded, _ = fold_biases(encoder)
    assert reduce_factors(folded) == 3
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
        split = value[text].view(7, heads, d_v).transpose(0, 1)
        expected = torch.from_numpy(by_definition(split.numpy(), rows.numpy()))
        torch.testing.assert_close(found[text].float(), expected, rtol=1e-6, atol=0)


def test_a_value_that_adds_nothing_has_norm_0() -> None:
    null_context = torch.tensor([1.0, -2.0, 0.5, 3.0])
    factor = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(1))
    value = null_context.expand(1, 3, 4)
    assert torch.equal(value_norms(value, null_context, factor, torch.tensor(True)), torch.zeros(1, 2, 3))


def test_a_head_without_output_weights_moves_nothing() -> None:
    encoder = copy.deepcopy(draw_weights(Encoder(TINY)))
    encoder.get_parameter("layers.1.attention.output.weight")[:, : TINY.d_v] = 0.0
    norms = encoder(IDS, LENGTHS, norm_layers=ALL).value_norms[1]
    assert norms is not None
    assert (norms[:, 0] == 0).all()
    assert (norms[:, 1:] > 0).all()
