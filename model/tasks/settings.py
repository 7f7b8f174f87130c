"""The tasks by name, their outputs, and what describes each one's layers.

Standard library only: the service reads all of this from the manifest without torch. A task's layers stand in the
module of its name beside this one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from model.config_checks import ConfigError, require, require_choice, require_flag

if TYPE_CHECKING:
    from model.config import EncoderConfig

Task = Literal["embedding", "classification", "sparse", "multi_vector"]
ScoreActivation = Literal["identity", "sigmoid", "softmax"]
LayerActivation = Literal["identity", "tanh", "gelu", "gelu_tanh", "relu", "silu"]

OUTPUT_NAMES: Mapping[Task, str] = MappingProxyType(
    {"embedding": "pooled", "classification": "logits", "sparse": "sparse", "multi_vector": "token_vectors"}
)
"""The name of the graph output that each task is for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassificationSettings:
    """From hidden states to logits: pooling (`EncoderConfig.pooling`), a dense layer, and one logit a label.

    Attributes:
        labels: a name a logit; a single one for a score, as rerankers give.
        activation: what makes scores of logits; not part of the graph.
        dense_activation: after the dense layer [D, D] that comes first; None where there is no such layer.
        dense_bias: whether that layer has a bias.
        dense_norm: whether a LayerNorm follows the activation.
        output_bias: whether the layer that gives the logits has a bias.
    """

    labels: tuple[str, ...]
    activation: ScoreActivation = "identity"
    dense_activation: LayerActivation | None = "tanh"
    dense_bias: bool = True
    dense_norm: bool = False
    output_bias: bool = True

    def __post_init__(self) -> None:
        if not self.labels or not all(isinstance(label, str) for label in self.labels):
            raise ConfigError(f"labels is {self.labels!r:.100}: expected at least one text")
        if len(set(self.labels)) < len(self.labels):
            raise ConfigError(f"labels is {self.labels!r:.100}: expected names that differ")
        require_choice("activation", self.activation, get_args(ScoreActivation))
        if self.dense_activation is not None:
            require_choice("dense_activation", self.dense_activation, get_args(LayerActivation))
        for name in ("dense_bias", "dense_norm", "output_bias"):
            require_flag(name, getattr(self, name))

    def output_size(self, config: "EncoderConfig") -> int:
        """Logits a text."""
        del config
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseSettings:
    """From hidden states to one weight a word of the vocabulary (SPLADE, Formal et al. 2021).

    `log(1 + max(0, max over tokens of logits))`, the logits from a masked language model's head: a dense layer, an
    activation, a LayerNorm, and a product with the token embeddings.

    Attributes:
        dense_activation: after the dense layer.
        dense_bias: whether that layer has a bias.
        bias: whether a bias a word is added to the logits.
        tied: whether the last product is with the token embeddings; else it has weights of its own.
        saturations: how often `log(1 + x)` is applied: once, or twice as OpenSearch's models do.
    """

    dense_activation: LayerActivation = "gelu"
    dense_bias: bool = True
    bias: bool = True
    tied: bool = True
    saturations: int = 1

    def __post_init__(self) -> None:
        require_choice("dense_activation", self.dense_activation, get_args(LayerActivation))
        require("saturations", self.saturations, minimum=1, maximum=2)
        for name in ("dense_bias", "bias", "tied"):
            require_flag(name, getattr(self, name))

    def output_size(self, config: "EncoderConfig") -> int:
        """One weight a word of the vocabulary."""
        return config.vocab_size


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiVectorSettings:
    """From hidden states to one vector a token (ColBERT, Khattab and Zaharia 2020).

    Attributes:
        size: D', dimensions of a token's vector.
        bias: whether the dense layer [D, D'] has a bias.
        dense_activation: after it.
        skipped_ids: tokens whose vectors do not count in a score, such as punctuation's.
        skipped_in: of which texts they do not count, `query` and `document`.
        query_length: the longest query in tokens, None for the longest text.
        document_length: the longest document in tokens, None for the longest text.
    """

    size: int
    bias: bool = False
    dense_activation: LayerActivation = "identity"
    skipped_ids: tuple[int, ...] = ()
    skipped_in: tuple[str, ...] = ("document",)
    query_length: int | None = None
    document_length: int | None = None

    def __post_init__(self) -> None:
        require("size", self.size, minimum=1)
        require_flag("bias", self.bias)
        require_choice("dense_activation", self.dense_activation, get_args(LayerActivation))
        for index in self.skipped_ids:
            require("skipped_ids", index, minimum=0)
        for kind in self.skipped_in:
            require_choice("skipped_in", kind, ("query", "document"))
        for name in ("query_length", "document_length"):
            if getattr(self, name) is not None:
                require(name, getattr(self, name), minimum=1)

    def output_size(self, config: "EncoderConfig") -> int:
        """Dimensions of a token's vector."""
        del config
        return self.size


TaskSettings = ClassificationSettings | SparseSettings | MultiVectorSettings
SETTINGS: Mapping[str, type[TaskSettings]] = MappingProxyType(
    {"classification": ClassificationSettings, "sparse": SparseSettings, "multi_vector": MultiVectorSettings}
)


def read_settings(task: object, data: Mapping[str, Any] | None) -> TaskSettings | None:
    """The settings of a task from JSON types; None for an embedding, which `pooling` and `projection` describe.

    Raises:
        ConfigError: no such task, or settings that are not its own.
    """
    if data is None:
        return None
    if task not in SETTINGS:
        raise ConfigError(f"task_settings for task {task!r:.100}: only {', '.join(SETTINGS)} have settings")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return SETTINGS[str(task)](**values)


def check_task(config: "EncoderConfig") -> None:
    """A task is a known one and comes with its settings.

    Raises:
        ConfigError: naming the field, the value and what is allowed.
    """
    require_choice("task", config.task, get_args(Task))
    expected = SETTINGS.get(config.task, type(None))
    if not isinstance(config.task_settings, expected):
        raise ConfigError(
            f"task {config.task} with task_settings {type(config.task_settings).__name__}: expected {expected.__name__}"
        )
    if config.task != "embedding" and config.projections:
        raise ConfigError(f"projections are dense layers after an embedding's pooling: task {config.task} has none")
