import copy
import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from export.graph import fold_biases, reduce_factors
from model.attention import Implementation
from model.config import EncoderConfig
from model.encoder import Encoder
from model.value_stream import LayerRequest, ValueStream, output_rows, reduced_factor, value_norms
from tests.networks import TINY, draw_weights

MODELS = Path(__file__).parents[2] / "docs" / "models.md"
EQUAL_HEADS = {**TINY.to_dict(), "num_heads": [4, 4, 4]}
MIXES = [(0, 1), (0.5, 0.5), (-0.25, 1.5)]
IDS, LENGTHS = torch.arange(36).reshape(3, 12) % 48, torch.tensor([12, 5, 1])


def network(**change: Any) -> Encoder:
    return draw_weights(Encoder(EncoderConfig.from_dict({**EQUAL_HEADS, **change})))


def test_learned_factors_are_parameters_and_fixed_ones_are_not() -> None:
    learned = network(value_residual=MIXES, learned_value_residual=True)
    names = [name for name in learned.state_dict() if name.endswith("stream.mix")]
    assert names == ["layers.1.attention.stream.mix", "layers.2.attention.stream.mix"]
    made = Encoder(learned.config)
    assert torch.equal(made.state_dict()[names[1]], torch.tensor(MIXES[2]))
    made(IDS, LENGTHS).pooled.sum().backward()
    assert all(parameter.grad is not None for name, parameter in made.named_parameters() if name.endswith("mix"))
    assert network(value_residual=MIXES).state_dict().keys() == network().state_dict().keys()


def test_the_first_layers_values_are_computed_once() -> None:
    encoder = network(value_residual=MIXES)
    runs: list[int] = []
    encoder.get_submodule("layers.0.attention.value").register_forward_hook(lambda *_: runs.append(1))
    encoder(IDS, LENGTHS)
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
    assert Encoder(EncoderConfig.from_dict(shown)).eval()(IDS, LENGTHS).pooled.shape == (3, 64)


HEADS = sum(TINY.num_heads)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return draw_weights(Encoder(TINY))


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


def test_folded_biases_stay_the_heads_own(encoder: Encoder) -> None:
    """A closed head loses its value bias, wherever the fold put it."""
    reference = copy.deepcopy(encoder).double().use("eager")
    folded = fold_biases(reference)
    drawn = torch.rand(3, HEADS, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 1.5 - 0.25
    gates = drawn.clamp(0, 1)  # about a third of them exactly 0 or 1
    expected = reference(IDS, LENGTHS, head_gates=gates).pooled
    torch.testing.assert_close(folded(IDS, LENGTHS, head_gates=gates).pooled, expected, atol=1e-12, rtol=0)


ALL = torch.tensor([True] * TINY.num_layers)


def test_only_the_layers_asked_for() -> None:
    encoder = draw_weights(Encoder(TINY))
    found = encoder(IDS, LENGTHS, norm_layers=torch.tensor([True, False, True, True])).value_norms
    shapes = [(3, 4, 12), (0, 3, 0), (0, 0, 0), (3, 1, 12)]
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
