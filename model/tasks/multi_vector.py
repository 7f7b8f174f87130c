"""One vector a token: a dense layer on every token. The service normalises them and drops those that do not count."""

from torch import Tensor, nn

from model.config import EncoderConfig
from model.tasks.activations import LAYER_ACTIVATIONS
from model.tasks.definition import Encoded, TaskDefinition
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


MULTI_VECTOR = TaskDefinition(make_layers=MultiVectorLayers, is_per_token=True)
