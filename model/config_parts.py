"""Parts of an `EncoderConfig` that have fields of their own. Standard library only."""

from dataclasses import dataclass
from typing import Literal, get_args

from model.config_checks import ConfigError, require, require_choice, require_flag, require_positive

ProjectionActivation = Literal["identity", "tanh"]
RopeScalingKind = Literal["yarn", "llama3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """A dense layer after pooling: `pooled [B, D] -> activation(pooled W + b) [B, size]`."""

    size: int
    bias: bool = True
    activation: ProjectionActivation = "tanh"

    def __post_init__(self) -> None:
        require("projection.size", self.size, minimum=1)
        require_flag("projection.bias", self.bias)
        require_choice("projection.activation", self.activation, get_args(ProjectionActivation))


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
