"""First weights of a network that is trained from nothing.

torch draws embeddings with a deviation of 1, which no encoder begins with. BERT and those after it draw every matrix
from N(0, 0.02) and set biases to 0 and norms to 1. Without norms behind the additions the residual stream grows with
depth, so pre-norm networks scale what is added by 1 / sqrt(2 L) (Radford et al. 2019, section 2.3).
"""

import math

import torch
from torch import Tensor, nn

from model.attention import MultiHeadAttention
from model.config import EncoderConfig
from model.encoder import Encoder
from model.layers import FeedForward

DEVIATION = 0.02


def initialise(encoder: Encoder, seed: int) -> Encoder:
    """Initialises every weight again, the same for the same seed, and returns the encoder.

    Parameters of the value residual keep what the configuration begins them with.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in encoder.modules():
            _draw(module, generator)
        if encoder.config.pre_norm:
            for weight in _added_to_the_stream(encoder):
                weight.mul_(1 / math.sqrt(2 * encoder.config.num_layers))
    return encoder


def _draw(module: nn.Module, generator: torch.Generator) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        if name == "mix":
            continue
        if parameter.ndim > 1:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * DEVIATION)
        else:
            parameter.fill_(1.0 if name in ("weight", "layer_scalar") else 0.0)  # a factor; a bias


def _added_to_the_stream(encoder: Encoder) -> set[Tensor]:
    """The weights of the last product of each attention and feed-forward; those that layers share once."""
    attentions = {m.output.weight for m in encoder.modules() if isinstance(m, MultiHeadAttention) and m.num_heads}
    return attentions | {m.down.weight for m in encoder.modules() if isinstance(m, FeedForward)}


def make_untrained(config: EncoderConfig) -> Encoder:
    """A randomly initialised network of a configuration, to compare a trained one with; always the same."""
    return initialise(Encoder(config), 0).eval().requires_grad_(False)
