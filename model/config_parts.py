"""Parts of an `EncoderConfig` that have fields of their own. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from model.config_checks import ConfigError, require, require_choice, require_flag, require_positive

ProjectionActivation = Literal["identity", "tanh"]
RopeScalingKind = Literal["yarn", "llama3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """A dense layer after pooling: `x [B, D] -> activation(x W + b) [B, size]`."""

    size: int
    bias: bool = True
    activation: ProjectionActivation = "tanh"

    def __post_init__(self) -> None:
        require("projections.size", self.size, minimum=1)
        require_flag("projections.bias", self.bias)
        require_choice("projections.activation", self.activation, get_args(ProjectionActivation))


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """Rotary frequencies for texts longer than the network was first trained on.

    A pair of dimensions that turns more than `high` times over the original positions keeps its frequency, one that
    turns less than `low` times is divided by `factor`; those between change gradually. `yarn` (Peng et al. 2024, 3.2)
    counts the pairs between, `llama3` their turns.

    Attributes:
        kind: `yarn` or `llama3`.
        factor: what slow frequencies are divided by.
        original_positions: the length that the network was first trained on, in tokens.
        low: turns.
        high: turns.
        magnitude: factor on the turned queries and keys.
        whole_pairs: of `yarn`: whether the first and the last pair between are rounded outwards to whole ones.
    """

    kind: RopeScalingKind
    factor: float
    original_positions: int
    low: float = 1.0
    high: float = 32.0
    magnitude: float = 1.0
    whole_pairs: bool = True

    def __post_init__(self) -> None:
        require_choice("rope_scaling.kind", self.kind, get_args(RopeScalingKind))
        require("rope_scaling.original_positions", self.original_positions, minimum=1)
        require_flag("rope_scaling.whole_pairs", self.whole_pairs)
        for name in ("factor", "low", "high", "magnitude"):
            require_positive(f"rope_scaling.{name}", getattr(self, name))
        if self.low >= self.high:
            raise ConfigError(f"rope_scaling.low is {self.low}: expected less than high = {self.high}")


def rename_older(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON types of an `EncoderConfig` in the names of this version: there was one `projection` once.

    Raises:
        ConfigError: both names are there.
    """
    renamed = dict(data)
    if "projection" in renamed:
        one = renamed.pop("projection")
        if renamed.get("projections") and one is not None:
            raise ConfigError("projection and projections: give the second only")
        renamed["projections"] = renamed.get("projections", []) if one is None else [one]
    return renamed


def read_parts(data: Mapping[str, Any]) -> dict[str, Any]:
    """Values of an `EncoderConfig` from JSON types: lists as tuples, objects as parts."""
    values = dict(data)
    values["num_heads"] = tuple(values["num_heads"])
    for name in ("local_layers", "num_key_value_heads", "shared_layers"):
        values[name] = tuple(values.get(name, ()))
    for name in ("kept_heads", "value_residual", "query_groups"):
        values[name] = tuple(map(tuple, values.get(name, ())))
    values["projections"] = tuple(Projection(**entry) for entry in values.get("projections", ()))
    if values.get("rope_scaling") is not None:
        values["rope_scaling"] = RopeScaling(**values["rope_scaling"])
    return values
