"""One logit a label, of texts or of tokens; a lower precision is judged by what callers decide from the logits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import kendalltau
from torch import Tensor

from export.errors import UnsupportedModel
from export.families.family import choose
from export.modules import read_torch_class
from export.tasks import yes_no
from export.tasks.definition import Rows, TaskExport, TaskSource, Threshold
from model.config import EncoderConfig
from model.config_parts import ClassificationSettings, ScoreActivation, require

ACTIVATIONS: Mapping[str, ScoreActivation] = {"Sigmoid": "sigmoid", "Identity": "identity", "Softmax": "softmax"}
PROBLEMS: Mapping[str, ScoreActivation] = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "identity",
}
DEFAULT_LABELS = 2  # of `transformers`, where config.json says nothing


def read(source: TaskSource, config: EncoderConfig) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network as a classifier, and the weights of its last layers."""
    if yes_no.is_language_model(source.described):
        return yes_no.read(source, config, read_activation(source, 1))
    if source.pipeline.dense:
        labels, read_settings, state = _read_modules(source, config.hidden_size)
    else:
        layers, state = source.pick(source.family.classifier)
        labels, read_settings = read_labels(source.described), layers.read_settings(source.described)
    pooling = read_settings.pop("pooling", "cls")
    settings = ClassificationSettings(
        labels=labels,
        activation=read_activation(source, len(labels)),
        output_bias="task_layers.output.bias" in state,
        **read_settings,
    )
    if source.pipeline.default_prompt_name is not None:
        raise UnsupportedModel("a default prompt in front of pairs is not supported: set default_prompt_name to null")
    return replace(config, task="classification", task_settings=settings, pooling=pooling), state


def _read_modules(source: TaskSource, size: int) -> tuple[tuple[str, ...], dict[str, Any], dict[str, Tensor]]:
    """Labels, settings and weights of a classifier whose layers are modules behind pooling."""
    pipeline = source.pipeline
    *hidden, (last, _) = pipeline.dense
    if last.activation != "identity" or any(settings.size != size for settings, _ in hidden):
        raise UnsupportedModel(
            "dense layers of a classifier are supported if the last one has no activation, and one before it the "
            "network's width"
        )
    parts = {"output": pipeline.dense[-1].state, "norm": pipeline.layer_norm}
    read: dict[str, Any] = {"dense_activation": None, "pooling": pipeline.pooling}
    if hidden:
        parts["dense"] = hidden[0].state
        read |= {"dense_activation": hidden[0].settings.activation, "dense_bias": hidden[0].settings.bias}
    read["dense_norm"] = read["dense_norm_plain"] = bool(pipeline.layer_norm)
    state = {f"task_layers.{layer}.{name}": tensor for layer, part in parts.items() for name, tensor in part.items()}
    named = source.described.get("id2label") or ()
    numbered = {"num_labels": last.size} if len(named) != last.size else source.described
    return read_labels(numbered), read, state


def read_tokens(source: TaskSource, config: EncoderConfig) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network with a logit a label of every token, and the weights of its last layers."""
    layers, state = source.pick(source.family.token_classifier)
    settings = ClassificationSettings(
        labels=read_labels(source.described),
        activation="softmax",  # what `transformers` takes, whatever problem_type says
        output_bias="task_layers.output.bias" in state,
        **layers.read_settings(source.described),
    )
    return replace(config, task="token_classification", task_settings=settings), state


def read_labels(described: Mapping[str, Any]) -> tuple[str, ...]:
    """A name a logit, from `id2label`, whose ids are 0 to one below their number, or from the number of labels."""
    named = described.get("id2label")
    if not named:
        count = described.get("num_labels", DEFAULT_LABELS)
        require("num_labels", count, minimum=1)
        return tuple(f"LABEL_{index}" for index in range(count))
    if not isinstance(named, dict) or {str(index) for index in range(len(named))} != set(named):
        raise UnsupportedModel(f"id2label is {named!r:.100}: expected a name for each of 0 to the last label")
    return tuple(str(named[str(index)]) for index in range(len(named)))


def read_activation(source: TaskSource, labels: int) -> ScoreActivation:
    """Reads what turns logits into scores: sentence-transformers' setting, or the meaning of the labels.

    If neither says, one label is a score (sigmoid, as CrossEncoder has it) and several exclude each other (softmax).
    """
    described = source.described
    named = (
        source.pipeline.around.get("activation_fn")
        or (described.get("sentence_transformers") or {}).get("activation_fn")
        or described.get("sbert_ce_default_activation_function")
    )
    if named is not None:
        return read_torch_class(named, ACTIVATIONS)
    problem = described.get("problem_type")
    if labels == 1 and (source.pipeline.around or "sentence_transformers" in described):
        return "sigmoid"  # CrossEncoder's, whatever problem_type says
    if problem is not None:
        return choose(described, "problem_type", PROBLEMS)
    return "sigmoid" if labels == 1 else "softmax"


def measure(found: Rows, expected: Rows) -> dict[str, float]:
    """How far logits are from float32's, and whether the decision is the same.

    `largest_difference` is of any logit, `relative_difference` the same by the standard deviation of float32's logits
    over the texts (the largest of any label). With one label the decision is an order: Kendall's tau of the scores.
    With several it is the best label: the share of texts in which it is the same.
    """
    logits, reference = np.stack(found).astype(np.float64), np.stack(expected).astype(np.float64)  # [N, labels]
    largest, spread = float(np.abs(logits - reference).max()), float(reference.std(axis=0).max())
    differences = {"largest_difference": largest, "relative_difference": largest / spread if spread else largest}
    if logits.shape[1] == 1:
        return {**differences, "kendall_tau": float(kendalltau(logits[:, 0], reference[:, 0]).statistic)}
    return {**differences, "same_best_label": float((logits.argmax(1) == reference.argmax(1)).mean())}


def _thresholds(difference: float, agreement: float) -> tuple[Threshold, ...]:
    decision = Threshold("kendall_tau", least=agreement, instead="same_best_label")
    return Threshold("relative_difference", most=difference), decision


# int8: vectors with a cosine of 0.998 to float32's order texts with a tau of about 0.96 (2 / pi * asin(r), of two
# normal variables that correlate by r).
CLASSIFICATION = TaskExport(
    read=read,
    measure=measure,
    thresholds={"fp16": _thresholds(0.05, 0.98), **dict.fromkeys(("bf16", "int8"), _thresholds(0.5, 0.9))},
)


def measure_tokens(found: Rows, expected: Rows) -> dict[str, float]:
    """How far tokens' logits are from float32's, and the share of tokens whose best label is the same.

    `relative_difference` is the root of the mean square over all tokens, by the standard deviation of float32's logits
    over the tokens (the largest of any label): among thousands of tokens the largest is of one that decides nothing.
    """
    logits, reference = np.concatenate(found).astype(np.float64), np.concatenate(expected).astype(np.float64)
    root, spread = float(np.sqrt(np.square(logits - reference).mean())), float(reference.std(axis=0).max())
    return {
        "largest_difference": float(np.abs(logits - reference).max()),
        "relative_difference": root / spread if spread else root,
        "same_best_label": float((logits.argmax(1) == reference.argmax(1)).mean()),
    }


TOKEN_CLASSIFICATION = TaskExport(
    read=read_tokens,
    measure=measure_tokens,
    thresholds={
        precision: (Threshold("relative_difference", most=most), Threshold("same_best_label", least=least))
        for precision, most, least in (("fp16", 0.02, 0.98), ("bf16", 0.2, 0.9), ("int8", 0.2, 0.9))
    },
)
