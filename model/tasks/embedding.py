"""One vector a text: pooling, then an optional dense layer. The service normalises and truncates it."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from model.config import EncoderConfig
from model.pooling import POOLINGS
from model.tasks.definition import Array, Encoded, TaskDefinition, Threshold, cosines


class EmbeddingLayers(nn.Module):
    """Pooling, and the projection where there is one."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.pool = POOLINGS[config.pooling]
        self.projection: nn.Linear | None = None
        self.activation: nn.Module = nn.Identity()
        if config.projection:
            self.projection = nn.Linear(config.hidden_size, config.projection.size, bias=config.projection.bias)
            if config.projection.activation == "tanh":
                self.activation = nn.Tanh()

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, D], or [B, size] behind a projection."""
        pooled = self.pool(encoded.last_hidden_state, encoded.tokens.lengths)
        if self.projection is None:
            return pooled
        projected: Tensor = self.activation(self.projection(pooled))
        return projected


def measure(found: Sequence[Array], expected: Sequence[Array]) -> dict[str, float]:
    """Cosines of the vectors to those of float32, on average and at worst."""
    found_cosines = cosines(np.stack(found), np.stack(expected))
    return {"cosine_mean": float(found_cosines.mean()), "cosine_worst": float(found_cosines.min())}


EMBEDDING = TaskDefinition(
    make_layers=EmbeddingLayers,
    is_per_token=False,
    measure=measure,
    thresholds={
        "fp16": (Threshold("cosine_mean", least=0.9995), Threshold("cosine_worst", least=0.9995)),
        "int8": (Threshold("cosine_mean", least=0.998), Threshold("cosine_worst", least=0.99)),
    },
)
