"""`transformers`' BERT with single heads scaled, and what its heads move: references for gates and norms."""

from collections.abc import Iterator, Mapping
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
    """Multiplies the context of (layer, head) by a factor, where it enters the output projection."""
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
