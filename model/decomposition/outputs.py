"""From parts of the hidden states to parts of the task's output: pooling is linear, an activation after it a factor."""

from torch import Tensor, nn

from model.config import Pooling
from model.decomposition.factors import FACTORS
from model.decomposition.frozen import freeze_norm
from model.decomposition.parts import Sources
from model.encoder import Encoder
from model.tasks.activations import LAYER_ACTIVATIONS
from model.tasks.classification import ClassificationLayers
from model.tasks.embedding import EmbeddingLayers
from model.tasks.settings import ClassificationSettings, LayerActivation


def output_parts(encoder: Encoder, hidden: Tensor, pooled_parts: Tensor, sources: Sources) -> Tensor:
    """Parts of the task's output.

    Args:
        encoder: an embedder or a classifier.
        hidden: [S, D], `last_hidden_state`.
        pooled_parts: [N, D], parts of what pooling makes of it.
        sources: whose.

    Returns:
        [N, D'].
    """
    layers, config = encoder.task_layers, encoder.config
    pooled = pool(hidden[:, None], hidden, config.pooling)[0]
    if isinstance(layers, EmbeddingLayers):
        for module, described in zip(layers.projections, config.projections, strict=True):
            assert isinstance(module, nn.Linear)  # noqa: S101 - an embedding's layers hold no others
            pooled_parts = _dense(module, described.activation, pooled, pooled_parts, sources)
            pooled = LAYER_ACTIVATIONS[described.activation](module(pooled))
        return pooled_parts
    if isinstance(layers, ClassificationLayers) and isinstance(config.task_settings, ClassificationSettings):
        if layers.dense is not None and (activation := config.task_settings.dense_activation) is not None:
            pooled_parts = _dense(layers.dense, activation, pooled, pooled_parts, sources)
            pooled = layers.activation(layers.dense(pooled))
        return sources.linear(layers.output, sources.norm(freeze_norm(layers.norm, pooled), pooled_parts))
    raise ValueError(
        f"task {config.task} gives no vector of a text: an embedding or a classification can be decomposed"
    )


def pool(parts: Tensor, hidden: Tensor, pooling: Pooling) -> Tensor:
    """[S, N, D] -> [N, D]; a maximum takes each dimension of the token that wins it in `hidden [S, D]`."""
    if pooling == "mean":
        return parts.mean(dim=0)
    if pooling == "max":
        winners = hidden.argmax(dim=0).expand(1, *parts.shape[1:])  # [1, N, D]
        return parts.gather(0, winners)[0]
    return parts[0 if pooling == "cls" else -1]


def _dense(module: nn.Linear, activation: LayerActivation, pooled: Tensor, parts: Tensor, sources: Sources) -> Tensor:
    return sources.linear(module, parts) * FACTORS[activation](module(pooled))
