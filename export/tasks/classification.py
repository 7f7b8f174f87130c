"""Reads a classifier: `...ForSequenceClassification`, alone or as sentence-transformers' CrossEncoder."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.tasks.source import TaskSource
from model.config import EncoderConfig
from model.config_checks import require
from model.tasks.settings import ClassificationSettings, ScoreActivation

ACTIVATIONS: Mapping[str, ScoreActivation] = {"Sigmoid": "sigmoid", "Identity": "identity", "Softmax": "softmax"}
PROBLEMS: Mapping[str, ScoreActivation] = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "identity",
}
DEFAULT_LABELS = 2  # of `transformers`, where config.json says nothing


def read(source: TaskSource, config: EncoderConfig) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network as a classifier, and the weights of its last layers.

    Raises:
        UnsupportedModel: other layers, labels or activations than are reproduced.
    """
    layers = source.layers("CLASSIFIER")
    state = source.pick(layers)
    read_settings = layers.read_settings(source.described)
    pooling = read_settings.pop("pooling", "cls")
    labels = read_labels(source.described)
    settings = ClassificationSettings(
        labels=labels,
        activation=read_activation(source, len(labels)),
        output_bias="task_layers.output.bias" in state,
        **read_settings,
    )
    if source.pipeline.default_prompt_name is not None:
        raise UnsupportedModel("a default prompt in front of pairs is not supported: set default_prompt_name to null")
    return replace(config, task="classification", task_settings=settings, pooling=pooling), state


def read_labels(described: Mapping[str, Any]) -> tuple[str, ...]:
    """A name a logit, from `id2label` or the number of labels.

    Raises:
        UnsupportedModel: the ids are not those from 0 to one below their number.
    """
    named = described.get("id2label")
    if not named:
        count = described.get("num_labels", DEFAULT_LABELS)
        require("num_labels", count, minimum=1)
        return tuple(f"LABEL_{index}" for index in range(count))
    if not isinstance(named, dict) or {str(index) for index in range(len(named))} != set(named):
        raise UnsupportedModel(f"id2label is {named!r:.100}: expected a name for each of 0 to the last label")
    return tuple(str(named[str(index)]) for index in range(len(named)))


def read_activation(source: TaskSource, labels: int) -> ScoreActivation:
    """What makes scores of logits: what sentence-transformers was told, or what the labels are said to mean.

    Where nobody says, one label is a score (sigmoid, as CrossEncoder has it) and several exclude each other (softmax).

    Raises:
        UnsupportedModel: an activation that is not reproduced.
    """
    described = source.described
    named = (
        source.pipeline.around.get("activation_fn")
        or (described.get("sentence_transformers") or {}).get("activation_fn")
        or described.get("sbert_ce_default_activation_function")
    )
    if named is not None:
        activation = str(named).rpartition(".")[-1]
        if activation not in ACTIVATIONS or not str(named).startswith("torch."):
            raise UnsupportedModel(f"activation_fn {named}: torch's {', '.join(ACTIVATIONS)} are supported")
        return ACTIVATIONS[activation]
    problem = described.get("problem_type")
    if problem is not None and problem not in PROBLEMS:
        raise UnsupportedModel(f"problem_type {problem!r}: one of {', '.join(PROBLEMS)} is supported")
    return PROBLEMS[problem] if problem is not None else "sigmoid" if labels == 1 else "softmax"
