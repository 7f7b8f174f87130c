from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from model.config import ConfigError, EncoderConfig
from model.encoder import Encoder, EncoderLayer
from model.gating import LayerRequest
from model.value_stream import ValueStream
from tests.networks import TINY, draw_weights

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


def neutral(**change: Any) -> tuple[Encoder, Encoder]:
    plain = network()
    made = with_state_of(plain, **change)
    for name, parameter in made.named_parameters():
        if name.endswith("stream.gate.weight"):
            parameter.zero_()
        if name.endswith("stream.gate.bias"):
            parameter.fill_(ALWAYS_OPEN)
        if name.endswith("stream.mix"):
            parameter.copy_(torch.tensor([0.0, 1.0]))
    return plain, made


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "change",
    [
        {"value_residual": [(0, 1)] * 3},
        {"value_residual": [(0, 1), (0.3, 0.7), (1, 1)], "learned_value_residual": True},
        {"value_activation": "identity"},
        {"output_gate": True},
        {"head_dropout": 0.5},
        {"value_residual": [(0, 1)] * 3, "output_gate": True, "head_dropout": 0.1},
    ],
    ids=str,
)
def test_is_the_identity_at_its_neutral_setting(change: dict[str, Any], implementation: Any) -> None:
    plain, made = neutral(**change)
    expected, found = (encoder.use(implementation)(IDS, LENGTHS) for encoder in (plain, made))
    assert torch.equal(found.last_hidden_state, expected.last_hidden_state)
    assert torch.equal(found.pooled, expected.pooled)


def written_out(encoder: Encoder, ids: Tensor) -> Tensor:
    """One text through a post-norm network by the equations, a head and a layer at a time, in float64; [n, D]."""
    config = encoder.config
    state = {name: tensor.double() for name, tensor in encoder.state_dict().items()}
    rows = range(len(ids))
    hidden = torch.stack(
        [state["embeddings.token.weight"][ids[i]] + state["embeddings.token_type.weight"][0] for i in rows]
    )
    hidden = normed(state, "embeddings.norm", hidden + state["embeddings.position.weight"][: len(ids)], config)
    first: list[Tensor] = []
    for layer in range(config.num_layers):
        name = f"layers.{layer}.attention"
        query, key, value = (
            hidden @ state[f"{name}.{part}.weight"].T + state[f"{name}.{part}.bias"]
            for part in ("query", "key", "value")
        )
        if config.value_activation == "silu":
            value = value * torch.sigmoid(value)
        contexts = []
        for head in range(config.num_heads[layer]):
            q, k = (x[:, head * config.d_k : (head + 1) * config.d_k] for x in (query, key))
            v = value[:, head * config.d_v : (head + 1) * config.d_v]
            if not layer:
                first.append(v)
            elif config.value_residual:
                mix = state.get(f"{name}.stream.mix", torch.tensor(config.value_residual[layer], dtype=torch.float64))
                v = mix[0] * first[head] + mix[1] * v
            context = torch.exp(q @ k.T / config.d_k**0.5)
            context = context / context.sum(dim=1, keepdim=True) @ v
            if config.output_gate:
                gate = hidden @ state[f"{name}.stream.gate.weight"][head] + state[f"{name}.stream.gate.bias"][head]
                context = context / (1 + torch.exp(-gate))[:, None]
            contexts.append(context)
        attended = torch.cat(contexts, dim=1) @ state[f"{name}.output.weight"].T + state[f"{name}.output.bias"]
        hidden = normed(state, f"layers.{layer}.attention_norm", hidden + attended, config)
        name = f"layers.{layer}.feed_forward"
        up = functional.gelu(hidden @ state[f"{name}.up.weight"].T + state[f"{name}.up.bias"])
        hidden = hidden + up @ state[f"{name}.down.weight"].T + state[f"{name}.down.bias"]
        hidden = normed(state, f"layers.{layer}.feed_forward_norm", hidden, config)
    return hidden


def normed(state: dict[str, Tensor], name: str, x: Tensor, config: EncoderConfig) -> Tensor:
    centred = x - x.mean(dim=1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=1, keepdim=True) + config.norm_eps).sqrt()
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"value_residual": MIXES},
        {"value_residual": MIXES, "learned_value_residual": True},
        {"value_residual": [(0, 1), (1, 0), (1, 0)]},
        {"value_activation": "silu"},
        {"output_gate": True},
        {"value_residual": MIXES, "value_activation": "silu", "output_gate": True},
    ],
    ids=str,
)
def test_equals_the_equations_written_out(change: dict[str, Any], implementation: Any) -> None:
    encoder = network(**change).double().use(implementation)
    found = encoder(IDS, LENGTHS).last_hidden_state
    for row, length in enumerate(LENGTHS.tolist()):
        expected = written_out(encoder, IDS[row, :length])
        torch.testing.assert_close(found[row, :length], expected, atol=1e-11, rtol=0)


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


def request(gates: Tensor | None = None) -> LayerRequest:
    return LayerRequest(torch.tensor(False), gates)


def drop(share: float, texts: int, heads: int = 4, gates: Tensor | None = None) -> Tensor:
    stream = ValueStream(hidden_size=8, num_heads=heads, head_dropout=share).train()
    found = stream.dropped(request(gates), torch.ones(texts, dtype=torch.int64)).gates(heads)
    assert found is not None
    return found


def test_head_dropout_leaves_out_whole_heads_a_text_and_counts_the_rest_more() -> None:
    torch.manual_seed(0)
    gates = drop(0.4, 20_000)
    kept = (gates > 0).sum(dim=1)
    assert (kept >= 1).all()
    torch.testing.assert_close(gates.sum(dim=1), torch.full((20_000,), 4.0))
    # 20,000 texts: the mean of a gate is within 5 standard errors, 5 * sd / 141 < 0.04, of 1 and the share of 0.4
    assert (gates.mean(dim=0) - 1).abs().max() < 0.04
    none_left = 0.4**4  # those keep all
    assert abs(float((gates == 0).double().mean()) - (0.4 - none_left)) < 0.02
    torch.manual_seed(0)
    assert torch.equal(drop(0.4, 20_000), gates)


def test_head_dropout_multiplies_a_callers_gates() -> None:
    torch.manual_seed(1)
    drawn = drop(0.5, 6)
    torch.manual_seed(1)
    asked = torch.rand(6, 4, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(drop(0.5, 6, gates=asked), drawn * asked)


def test_head_dropout_acts_in_training_only() -> None:
    encoder = network(head_dropout=0.5)
    assert torch.equal(encoder(IDS, LENGTHS).pooled, encoder(IDS, LENGTHS).pooled)
    encoder.train()
    torch.manual_seed(0)
    assert not torch.equal(encoder(IDS, LENGTHS).pooled, encoder(IDS, LENGTHS).pooled)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dropout": 1.0}, "head_dropout is 1.0"),
        ({"head_dropout": True}, "head_dropout is True"),
        ({"output_gate": 1}, "output_gate is 1: expected true or false"),
        ({"value_activation": "tanh"}, "value_activation is 'tanh': expected one of identity, gelu"),
        ({"learned_value_residual": True}, "learned_value_residual needs value_residual"),
        ({"value_residual": [(0, 1)]}, r"expected 3 pairs, the first layer's \(0, 1\)"),
        ({"value_residual": [(1, 0)] * 3}, r"expected 3 pairs, the first layer's \(0, 1\)"),
        ({"value_residual": [(0, 1), (1,), (1, 0)]}, r"value_residual\[1\] is \(1,\): expected two numbers"),
        ({"value_residual": [(0, 1), (1, float("nan")), (1, 0)]}, r"value_residual\[1\]"),
        ({"value_residual": MIXES, "num_heads": [4, 3, 4]}, "all need as many, not 0"),
    ],
)
def test_refuses_what_describes_no_value_stream(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderConfig.from_dict({**EQUAL_HEADS, **change})
