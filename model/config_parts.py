"""Parts of an `EncoderConfig` that have fields of their own, the tasks and their settings, and checks of fields.

Standard library only: the service reads all of this from the manifest without torch. The layers that the settings
describe are in `model.tasks`.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeGuard, get_args, get_origin

from model.json_types import read_object

MOST_LAYERS = 1024
LARGEST = 1 << 20  # of a size; the largest vocabularies in use have half as many tokens


Size = Annotated[int, 1]  # a whole number of at least this
Count = Annotated[int, 0]
Positive = Annotated[float, "above 0"]


class ConfigError(ValueError):
    """A configuration that describes no network: the message names the field, the value and the allowed values."""


def require(name: str, value: object, *, minimum: int, maximum: int = LARGEST) -> None:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise ConfigError(
            f"{name} is {value!r:.100}: expected a whole number of at least {minimum} and at most {maximum}"
        )


def is_number(value: object) -> TypeGuard[float]:
    """Finite, and no whole number that a float cannot hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def check_fields(settings: Any, prefix: str = "") -> None:
    """Refuses values that the annotations of a dataclass's fields do not allow: sizes, choices, flags, tuples of these.

    `prefix` stands before the fields' names in messages.
    """
    for each in fields(settings):
        _check(prefix + each.name, getattr(settings, each.name), each.type)


def _check(name: str, value: Any, kind: Any) -> None:
    outer, inner = get_origin(kind), get_args(kind)
    if kind in (Size, Count):
        require(name, value, minimum=inner[1])
    elif kind == Positive and (not is_number(value) or value <= 0):
        raise ConfigError(f"{name} is {value!r:.100}: expected a positive number")
    elif outer is Literal and value not in inner:
        raise ConfigError(f"{name} is {value!r}: expected one of {', '.join(inner)}")
    elif kind is bool and not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r:.100}: expected true or false")
    elif outer is tuple:
        for index, item in enumerate(value):
            _check(f"{name}[{index}]", item, inner[0])
    elif type(None) in inner and value is not None:
        _check(name, value, inner[0])


LayerActivation = Literal["identity", "tanh", "gelu", "gelu_tanh", "relu", "silu"]
RopeScalingKind = Literal["yarn", "llama3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """A dense layer after pooling, or on tokens: `x [B, D] -> activation(x W + b) [B, size]`."""

    size: Size  # of what it gives
    bias: bool = True  # whether it has one
    activation: LayerActivation = "tanh"  # after it
    # whether its input is added to what it gives, through a matrix of its own if the sizes differ
    residual: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "projections.")


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """Rotary frequencies for texts longer than the network was first trained on.

    A pair of dimensions that turns more than `high` times over the original positions keeps its frequency, one that
    turns less than `low` times is divided by `factor`; those between change gradually. `yarn` (Peng et al. 2024, 3.2)
    counts the pairs between, `llama3` their turns.
    """

    kind: RopeScalingKind  # `yarn` or `llama3`
    factor: Positive  # what slow frequencies are divided by
    original_positions: Size  # the length that the network was first trained on, in tokens
    low: Positive = 1.0  # turns
    high: Positive = 32.0  # turns
    magnitude: Positive = 1.0  # factor on the turned queries and keys
    # of `yarn`: whether the first and the last pair between are rounded outwards to whole ones
    whole_pairs: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "rope_scaling.")
        if self.low >= self.high:
            raise ConfigError(f"rope_scaling.low is {self.low}: expected less than high = {self.high}")


Precision = Literal["fp32", "fp16", "bf16", "int8"]  # of an artifact
Task = Literal["embedding", "classification", "token_classification", "sparse", "multi_vector"]
ScoreActivation = Literal["identity", "sigmoid", "softmax"]

OUTPUT_NAMES: Mapping[Task, str] = {
    "embedding": "pooled",
    "classification": "logits",
    "token_classification": "token_logits",
    "sparse": "sparse",
    "multi_vector": "token_vectors",
}
"""The name of the graph output that each task is for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassificationSettings:
    """From hidden states to logits: pooling (`EncoderConfig.pooling`), a dense layer, and one logit a label.

    Of task token_classification nothing is pooled: every token has a logit a label.
    """

    labels: tuple[str, ...]  # a name a logit; a single one for a score, as rerankers give
    activation: ScoreActivation = "identity"  # the function from logits to scores; not part of the graph
    # after the dense layer [D, D] that comes first; None if there is no such layer
    dense_activation: LayerActivation | None = "tanh"
    dense_bias: bool = True  # whether that layer has a bias
    dense_norm: bool = False  # whether a LayerNorm follows the activation, or pooling where there is no such layer
    dense_norm_plain: bool = False  # whether that is PyTorch's own, with a bias and 1e-5; else it is as the network's
    output_bias: bool = True  # whether the layer of the logits has a bias

    def __post_init__(self) -> None:
        if not self.labels or not all(isinstance(label, str) for label in self.labels):
            raise ConfigError(f"labels is {self.labels!r:.100}: expected at least one text")
        if len(set(self.labels)) < len(self.labels):
            raise ConfigError(f"labels is {self.labels!r:.100}: expected names that differ")
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseSettings:
    """From hidden states to one weight a word of the vocabulary (SPLADE, Formal et al. 2021).

    `log(1 + max(0, max over tokens of logits))`, the logits from a masked language model's head: a dense layer, an
    activation, a LayerNorm, and a product with the token embeddings.
    """

    dense_activation: LayerActivation = "gelu"  # after the dense layer
    dense_bias: bool = True  # whether that layer has a bias
    bias: bool = True  # whether a bias a word is added to the logits
    tied: bool = True  # whether the last product is with the token embeddings; else it has weights of its own
    saturations: int = 1  # how often `log(1 + x)` is applied: once, or twice as OpenSearch's models do

    def __post_init__(self) -> None:
        check_fields(self)
        require("saturations", self.saturations, minimum=1, maximum=2)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryExpansion:
    """Tokens put behind a query so that it has more vectors (Khattab and Zaharia 2020, section 3.2)."""

    token_id: Count  # of the token, usually the mask
    length: Size  # tokens that a query has at least, special ones included
    # whether the query's tokens and the expansion see the expansion's keys; else none does, but its queries see the
    # text
    attend: bool = False
    truncate: bool = True  # whether longer queries are cut to `length`; else they keep their tokens

    def __post_init__(self) -> None:
        check_fields(self, "query_expansion.")


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiVectorSettings:
    """From hidden states to one vector a token (ColBERT, Khattab and Zaharia 2020)."""

    size: Size  # D', dimensions of a token's vector
    bias: bool = False  # whether the last dense layer, whose output is the vector, has a bias
    dense_activation: LayerActivation = "identity"  # after it
    residual: bool = False  # of that layer, as `Projection.residual`
    hidden_layers: tuple[Projection, ...] = ()  # dense layers before it, the first one first
    skipped_ids: tuple[Count, ...] = ()  # tokens whose vectors do not count in a score, such as punctuation's
    # of which texts they do not count, `query` and `document`
    skipped_in: tuple[Literal["query", "document"], ...] = ("document",)
    query_length: Size | None = None  # the longest query in tokens, None for the longest text
    document_length: Size | None = None  # the longest document in tokens, None for the longest text
    query_expansion: QueryExpansion | None = None  # what queries are made longer by, None for nothing

    def __post_init__(self) -> None:
        check_fields(self)


TaskSettings = ClassificationSettings | SparseSettings | MultiVectorSettings

SETTINGS: Mapping[str, type[TaskSettings]] = {
    "classification": ClassificationSettings,
    "token_classification": ClassificationSettings,
    "sparse": SparseSettings,
    "multi_vector": MultiVectorSettings,
}


def read_settings(task: object, data: Mapping[str, Any] | None) -> TaskSettings | None:
    """The settings of a task from JSON types; None for an embedding, which `pooling` and `projections` describe.

    Raises:
        ConfigError: no such task, or settings that are not its own.
        JsonTypeError: a setting is of another type.
    """
    if data is None:
        return None
    if (kind := SETTINGS.get(str(task))) is None:
        raise ConfigError(f"task_settings for task {task!r:.100}: only {', '.join(SETTINGS)} have settings")
    return read_object(data, kind, "task_settings")
