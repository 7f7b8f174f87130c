"""One vector a text: pooling, then an optional dense layer. The service normalises and truncates it."""

from torch import Tensor, nn

from model.config import EncoderConfig
from model.pooling import POOLINGS
from model.tasks.definition import Encoded, TaskDefinition


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


EMBEDDING = TaskDefinition(make_layers=EmbeddingLayers, is_per_token=False)
