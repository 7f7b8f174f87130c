"""The untrained network that a head must be better than: the same architecture with drawn weights."""

import torch
from torch import nn

from model.config import EncoderConfig
from model.encoder import Encoder

SEED = 0
DEVIATION = 0.02  # what BERT and its kin are drawn with before training


def draw_control(config: EncoderConfig, seed: int = SEED) -> Encoder:
    """A network of a configuration with normal weights and neutral biases and norms, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    encoder = Encoder(config)
    with torch.no_grad():
        for module in encoder.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(0.0, DEVIATION, generator=generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
    return encoder.eval().requires_grad_(False)
