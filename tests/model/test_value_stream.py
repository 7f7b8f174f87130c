import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from model.attention import Implementation
from model.config import EncoderConfig
from model.encoder import Encoder, EncoderLayer
from model.value_stream import LayerRequest, ValueStream
from tests.networks import TINY, draw_weights

MODELS = Path(__file__).parents[2] / "docs" / "models.md"
EQUAL_HEADS = {**TINY.to_dict(), "num_heads": [4, 4, 4]}
MIXES = [(0, 1), (0.5, 0.5), (-0.25, 1.5)]
ALWAYS_OPEN = 40.0  # sigmoid(40) is 1 in float32: 1 - 4e-18
IDS, LENGTHS = torch.arange(36).reshape(3, 12) % 48, torch.tensor([12, 5, 1])


def network(**change: Any) -> Encoder:
    return draw_weights(Encoder(EncoderConfig.from_dict({**EQUAL_HEADS, **change})))


def with_state_of(plain: Encoder, **change: Any) -> Encoder:
    """A network of another configuration with the same weights; what it has besides stays as drawn."""
    made = network(**change)
    made.load_state_dict(plain.state_dict(), strict=False)
    return made


@pytest.mark.parametrize(
    "change",
    [
        {"value_residual": [(0, 1)] * 3},
        {"value_residual": [(0, 1), (0.3, 0.7), (1, 1)], "learned_value_residual": True},
        {"output_gate": True},
        {"value_residual": [(0, 1)] * 3, "output_gate": True, "head_dropout": 0.1},
    ],
    ids=str,
)
def test_is_the_identity_at_its_neutral_setting(change: dict[str, Any]) -> None:
    plain = network()
    made = with_state_of(plain, **change)
    for name, parameter in made.named_parameters():
        if name.endswith("stream.gate.weight"):
            parameter.zero_()
        if name.endswith("stream.gate.bias"):
            parameter.fill_(ALWAYS_OPEN)
        if name.endswith("stream.mix"):
            parameter.copy_(torch.tensor([0.0, 1.0]))
    for implementation in get_args(Implementation)[:2]:
        expected, found = (encoder.use(implementation)(IDS, LENGTHS) for encoder in (plain, made))
        assert torch.equal(found.last_hidden_state, expected.last_hidden_state)


def test_learned_factors_are_parameters_and_fixed_ones_are_not() -> None:
    learned = network(value_residual=MIXES, learned_value_residual=True)
    names = [name for name in learned.state_dict() if name.endswith("stream.mix")]
    assert names == ["layers.1.attention.stream.mix", "layers.2.attention.stream.mix"]
    made = Encoder(learned.config)
    assert torch.equal(made.state_dict()[names[1]], torch.tensor(MIXES[2]))
    made(IDS, LENGTHS).pooled.sum().backward()
    assert all(parameter.grad is not None for name, parameter in made.named_parameters() if name.endswith("mix"))
    assert network(value_residual=MIXES).state_dict().keys() == network().state_dict().keys()


def test_pre_norm_networks_take_the_first_values_behind_the_norm() -> None:
    change = {"pre_norm": True, "final_norm": True}
    plain = network(**change)
    only_first = with_state_of(plain, **change, value_residual=[(0, 1), (1, 0), (1, 0)])
    for layer in (1, 2):  # the same values come from a layer that projects the first layer's input as the first does
        assert not torch.equal(only_first(IDS, LENGTHS).pooled, plain(IDS, LENGTHS).pooled), layer
    first = only_first.layers[0]
    assert isinstance(first, EncoderLayer)
    hidden = torch.randn(5, 32)
    assert torch.equal(first.values(hidden), first.attention.value(first.attention_norm(hidden)))


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


def test_head_dropout_acts_in_training_only() -> None:
    encoder = network(head_dropout=0.5)
    assert torch.equal(encoder(IDS, LENGTHS).pooled, encoder(IDS, LENGTHS).pooled)
    encoder.train()
    assert not torch.equal(encoder(IDS, LENGTHS).pooled, encoder(IDS, LENGTHS).pooled)


def test_the_documented_network_is_one() -> None:
    section = MODELS.read_text(encoding="utf-8").split("\n## Your own shapes")[1]
    shown = json.loads(section.split("```json")[1].split("```")[0])
    assert shown.pop("model_type") == "polyhead"
    assert Encoder(EncoderConfig.from_dict(shown)).eval()(IDS, LENGTHS).pooled.shape == (3, 64)
