"""One logit a label: pooling, a dense layer with an activation (where there is one), a product.

A reranker is a classifier with one label: its logit is the score of a pair of texts.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from model.config import EncoderConfig
from model.norms import make_norm
from model.pooling import POOLINGS
from model.tasks.activations import LAYER_ACTIVATIONS
from model.tasks.definition import Array, Encoded, TaskDefinition, Threshold
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


def measure(found: Sequence[Array], expected: Sequence[Array]) -> dict[str, float]:
    """How far logits are from float32's, and whether the decision is the same.

    `largest_difference` is of any logit, `relative_difference` the same by the standard deviation of float32's logits
    over the texts (the largest of any label). With one label the decision is an order: Kendall's tau of the scores.
    With several it is the best label: the share of texts in which it is the same.
    """
    logits, reference = (np.stack(rows).astype(np.float64) for rows in (found, expected))  # [N, labels]
    largest, spread = float(np.abs(logits - reference).max()), float(reference.std(axis=0).max())
    differences = {"largest_difference": largest, "relative_difference": largest / spread if spread else largest}
    if logits.shape[1] == 1:
        return {**differences, "kendall_tau": kendall_tau(logits[:, 0], reference[:, 0])}
    return {**differences, "same_best_label": float((logits.argmax(1) == reference.argmax(1)).mean())}


def kendall_tau(a: Array, b: Array) -> float:
    """Kendall's tau-b of two orders: agreeing pairs less disagreeing ones, by pairs that are not tied. 1 for all tied.

    Raises:
        ValueError: arrays of different length.
    """
    signs_a, signs_b = (np.sign(x[:, None] - x[None, :]) for x in (a, b))
    pairs = np.sqrt(float((signs_a != 0).sum()) * float((signs_b != 0).sum()))
    if pairs == 0:
        return 1.0 if np.array_equal(signs_a, signs_b) else 0.0
    return float((signs_a * signs_b).sum() / pairs)


# A drawn network whose int8 embeddings have a cosine of 0.998 to float32's orders texts with a tau of about 0.96
# (2 / pi * asin(r) of two normal variables that correlate by r).
CLASSIFICATION = TaskDefinition(
    make_layers=ClassificationLayers,
    is_per_token=False,
    measure=measure,
    thresholds={
        "fp16": (
            Threshold("relative_difference", most=0.05),
            Threshold("kendall_tau", least=0.98),
            Threshold("same_best_label", least=0.98),
        ),
        "int8": (
            Threshold("relative_difference", most=0.5),
            Threshold("kendall_tau", least=0.9),
            Threshold("same_best_label", least=0.95),
        ),
    },
)
