"""One vector a token: a dense layer on every token. The service normalises them and drops those that do not count."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from model.config import EncoderConfig
from model.tasks.activations import LAYER_ACTIVATIONS
from model.tasks.definition import Array, Encoded, TaskDefinition, Threshold, cosines
from model.tasks.settings import MultiVectorSettings


class MultiVectorLayers(nn.Module):
    """A dense layer on the real tokens."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        settings = config.task_settings
        assert isinstance(settings, MultiVectorSettings)  # noqa: S101 - the configuration checked it
        self.dense = nn.Linear(config.hidden_size, settings.size, bias=settings.bias)
        self.activation = LAYER_ACTIVATIONS[settings.dense_activation]

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, S, D']; padding repeats a text's last token."""
        return encoded.tokens.pad(self.activation(self.dense(encoded.hidden)))


def measure(found: Sequence[Array], expected: Sequence[Array]) -> dict[str, float]:
    """Cosines of tokens' vectors to those of float32: the mean over tokens, and the worst text's mean."""
    texts = [cosines(*pair) for pair in zip(found, expected, strict=True)]
    worst = min(float(text.mean()) for text in texts)
    return {"cosine_mean": float(np.concatenate(texts).mean()), "cosine_worst": worst}


# A score adds up a query's best cosines, so a text's mean counts; single tokens are further off than means of them.
MULTI_VECTOR = TaskDefinition(
    make_layers=MultiVectorLayers,
    is_per_token=True,
    measure=measure,
    thresholds={
        "fp16": (Threshold("cosine_mean", least=0.9995), Threshold("cosine_worst", least=0.9995)),
        "int8": (Threshold("cosine_mean", least=0.99), Threshold("cosine_worst", least=0.98)),
    },
)
