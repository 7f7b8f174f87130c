"""The configuration that fully describes an encoder network.

Standard library only: the service reads it from the manifest without torch. It does not know where weights come from,
nor how text becomes token ids.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Pooling = Literal["mean", "cls", "max", "last"]
ProjectionActivation = Literal["identity", "tanh"]


class ConfigError(ValueError):
    """A configuration that describes no network: the message names the field, the value and what is allowed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """A dense layer after pooling: `pooled [B, D] -> activation(pooled W + b) [B, size]`."""

    size: int
    bias: bool = True
    activation: ProjectionActivation = "tanh"

    def __post_init__(self) -> None:
        _require("projection.size", self.size, minimum=1)
        _require_choice("projection.activation", self.activation, get_args(ProjectionActivation))


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """Everything needed to build an encoder; with weights of the matching shapes it is the network.

    Shape letters, here and everywhere: B batch, S sequence, D hidden, H heads, K = d_k, V = d_v, L layers.

    Attributes:
        vocab_size: rows of the token embedding.
        hidden_size: D, the width of the residual stream.
        num_heads: heads of each layer, first layer first; its length is L. 0 is legal: such a layer's attention adds
            its output bias only.
        d_k: size of one query or key head. Free of `hidden_size / num_heads` (Vaswani et al. 2017, table 3 B).
        d_v: size of one value head, free of `d_k`.
        intermediate_size: width of the feed-forward layer.
        max_positions: rows of the learned position embedding, the longest sequence the network can take.
        type_vocab_size: rows of the token type embedding; 0 where the family has none.
        activation: feed-forward non-linearity.
        norm_eps: epsilon of every LayerNorm.
        pooling: how `last_hidden_state [B, S, D]` becomes `pooled [B, D]`.
        projection: dense layer after pooling, or None.
    """

    vocab_size: int
    hidden_size: int
    num_heads: tuple[int, ...]
    d_k: int
    d_v: int
    intermediate_size: int
    max_positions: int
    type_vocab_size: int = 0
    activation: Activation = "gelu"
    norm_eps: float = 1e-12
    pooling: Pooling = "mean"
    projection: Projection | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "d_k", "d_v", "intermediate_size", "max_positions"):
            _require(name, getattr(self, name), minimum=1)
        _require("type_vocab_size", self.type_vocab_size, minimum=0)
        if not self.num_heads:
            raise ConfigError("num_heads is empty: give one head count a layer, at least one layer")
        for layer, heads in enumerate(self.num_heads):
            _require(f"num_heads[{layer}]", heads, minimum=0)
            if heads > self.hidden_size:
                raise ConfigError(f"num_heads[{layer}] is {heads}: at most hidden_size = {self.hidden_size} heads")
        _require_choice("activation", self.activation, get_args(Activation))
        _require_choice("pooling", self.pooling, get_args(Pooling))
        if not self.norm_eps > 0:
            raise ConfigError(f"norm_eps is {self.norm_eps}: expected a positive number")

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.num_heads)

    def head_span(self, layer: int) -> slice:
        """Which of all heads, counted from the first layer's first, are a layer's."""
        first = sum(self.num_heads[:layer])
        return slice(first, first + self.num_heads[layer])

    @property
    def embedding_size(self) -> int:
        """Width of `pooled`: the projection's size where there is one, else D."""
        return self.projection.size if self.projection else self.hidden_size

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON types; `from_dict` reverses it."""
        return {**asdict(self), "num_heads": list(self.num_heads)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "EncoderConfig":
        """Reads what `to_dict` wrote.

        Raises:
            ConfigError: a field is unknown, missing or out of range.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(data) - known):
            raise ConfigError(f"unknown fields {', '.join(unknown)}: this version knows {', '.join(sorted(known))}")
        values = dict(data)
        try:
            values["num_heads"] = tuple(values["num_heads"])
            if values.get("projection") is not None:
                values["projection"] = Projection(**values["projection"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"incomplete encoder configuration: {error}") from error


def _require(name: str, value: object, *, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{name} is {value!r}: expected a whole number of at least {minimum}")


def _require_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}: expected one of {', '.join(allowed)}")
