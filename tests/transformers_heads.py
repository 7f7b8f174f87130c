"""`transformers`' BERT with single heads scaled, and what its heads move: references for gates and norms."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from tests.networks import BERT_CONFIG


def draw_bert() -> BertModel:
    """A small BERT with eager attention; weights and biases of a size that matters."""
    torch.manual_seed(1)
    config = BertConfig(**BERT_CONFIG, initializer_range=0.3)
    config._attn_implementation = "eager"
    made = BertModel(config, add_pooling_layer=False)
    for module in made.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.bias, std=0.3)
    made.train(False)
    return made.requires_grad_(False)


@contextmanager
def scale_heads(network: BertModel, gated: Mapping[tuple[int, int], float]) -> Iterator[None]:
    """Multiplies the context of (layer, head) by a factor before the output projection."""
    size = network.config.hidden_size // network.config.num_attention_heads
    hooks = []
    for (layer, head), gate in gated.items():

        def scale(
            module: nn.Module, inputs: tuple[Tensor, ...], head: int = head, gate: float = gate
        ) -> tuple[Tensor, ...]:
            context = inputs[0].clone()
            context[..., head * size : (head + 1) * size] *= gate
            return (context, *inputs[1:])

        output = network.get_submodule(f"encoder.layer.{layer}.attention.output.dense")
        hooks.append(output.register_forward_pre_hook(scale))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def moved_norms(network: BertModel, input_ids: Sequence[int]) -> list[Tensor]:
    """||f(x_j)|| of one text, [H, n] a layer: each head's values by hand, through its own columns of the output weight.

    In float64, from the hidden states that the network itself gives.
    """
    with torch.inference_mode():
        states = network(torch.tensor([list(input_ids)]), output_hidden_states=True).hidden_states
    heads = network.config.num_attention_heads
    norms = []
    for layer in range(network.config.num_hidden_layers):
        value = network.get_submodule(f"encoder.layer.{layer}.attention.self.value")
        output = network.get_submodule(f"encoder.layer.{layer}.attention.output.dense")
        rows = zip(
            _double(value, "weight").chunk(heads),
            _double(value, "bias").chunk(heads),
            _double(output, "weight").chunk(heads, dim=1),
            strict=True,
        )
        hidden = states[layer][0].double()
        moved = [(hidden @ weight.T + bias) @ columns.T for weight, bias, columns in rows]
        norms.append(torch.stack([vectors.norm(dim=-1) for vectors in moved]))
    return norms


def _double(module: nn.Module, name: str) -> Tensor:
    return module.get_parameter(name).detach().double()
