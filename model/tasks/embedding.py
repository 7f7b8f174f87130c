"""One vector a text: pooling, then dense layers where there are any. The service normalises and truncates it."""

from itertools import pairwise

from torch import Tensor, nn

from model.config import EncoderConfig
from model.pooling import POOLINGS
from model.tasks.activations import LAYER_ACTIVATIONS
from model.tasks.definition import Encoded, TaskDefinition


class EmbeddingLayers(nn.Module):
    """Pooling, and the projections."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.pool = POOLINGS[config.pooling]
        sizes = pairwise([config.hidden_size, *(projection.size for projection in config.projections)])
        self.projections = nn.ModuleList(
            nn.Linear(*size, bias=projection.bias) for size, projection in zip(sizes, config.projections, strict=True)
        )
        self.activations = [LAYER_ACTIVATIONS[projection.activation] for projection in config.projections]

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, D], or [B, size] behind projections."""
        x = self.pool(encoded.last_hidden_state, encoded.tokens.lengths)
        for projection, activation in zip(self.projections, self.activations, strict=True):
            x = activation(projection(x))
        return x


EMBEDDING = TaskDefinition(make_layers=EmbeddingLayers, is_per_token=False)
