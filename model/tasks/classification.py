"""One logit a label: pooling, a dense layer with an activation (where there is one), a product.

A reranker is a classifier with one label: its logit is the score of a pair of texts.
"""

from torch import Tensor, nn

from model.config import EncoderConfig
from model.norms import make_norm
from model.pooling import POOLINGS
from model.tasks.activations import LAYER_ACTIVATIONS
from model.tasks.definition import Encoded, TaskDefinition
from model.tasks.settings import ClassificationSettings


class ClassificationLayers(nn.Module):
    """Pooling, `norm(activation(dense(x)))` where there is a dense layer, and the product that gives the logits."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        settings, size = config.task_settings, config.hidden_size
        assert isinstance(settings, ClassificationSettings)  # noqa: S101 - the configuration checked it
        self.pool = POOLINGS[config.pooling]
        self.dense: nn.Linear | None = None
        self.norm: nn.Module = nn.Identity()
        if settings.dense_activation is not None:
            self.dense = nn.Linear(size, size, bias=settings.dense_bias)
            self.activation = LAYER_ACTIVATIONS[settings.dense_activation]
        if settings.dense_norm:
            self.norm = make_norm("layer_norm", size, eps=config.norm_eps, bias=config.norm_bias)
        self.output = nn.Linear(size, len(settings.labels), bias=settings.output_bias)

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, labels]."""
        x = self.pool(encoded.last_hidden_state, encoded.tokens.lengths)  # [B, D]
        if self.dense is not None:
            x = self.activation(self.dense(x))
        logits: Tensor = self.output(self.norm(x))
        return logits


CLASSIFICATION = TaskDefinition(make_layers=ClassificationLayers, is_per_token=False)
