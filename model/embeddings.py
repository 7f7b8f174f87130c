"""What the first layer reads: tokens, positions and token types, added and normed."""

import torch
from torch import Tensor, nn

from model.config import EncoderConfig
from model.dropout import Dropout
from model.norms import norm_of
from model.positions import sinusoids


class Embeddings(nn.Module):
    """Token + position (learned or sinusoidal, where they stand here) + token type, a norm, and to D where narrower."""

    sinusoids: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size = config.token_size or config.hidden_size
        self.token = nn.Embedding(config.vocab_size, size)
        self.position = nn.Embedding(config.max_positions, size) if config.positions == "learned" else None
        self.has_sinusoids = config.positions == "sinusoidal"
        if self.has_sinusoids:
            self.register_buffer("sinusoids", sinusoids(config.max_positions, size), persistent=False)
        self.token_type = nn.Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        self.norm = norm_of(config, size) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout()
        self.to_hidden = nn.Linear(size, config.hidden_size) if config.token_size else None

    def forward(self, input_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Token ids, positions and token types (None for all 0), each int64 [T] -> [T, D]."""
        hidden = self.token(input_ids)
        if self.token_type is not None:
            hidden = hidden + self.token_type(torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids)
        if self.position is not None:
            hidden = hidden + self.position(positions)
        if self.has_sinusoids:
            hidden = hidden + self.sinusoids.index_select(0, positions)
        normed: Tensor = self.dropout(self.norm(hidden))
        return normed if self.to_hidden is None else self.to_hidden(normed)
