"""Rotary positions as config.json describes them, in the words of `transformers` before and since release 5.

Every reader refuses, with an UnsupportedModel, frequencies of a kind that is not reproduced and settings that
contradict each other.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from export.errors import UnsupportedModel
from export.families.family import GLOBAL, LOCAL, choose, require_agreement
from model.config_parts import RopeScaling

SETTINGS: Mapping[str, frozenset[str]] = {  # by kind, what an entry may say besides its kind and base
    "default": frozenset({"factor"}),  # unread there, and left behind by older files
    "linear": frozenset({"factor"}),
    "yarn": frozenset({"factor", "attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate"})
    | {"original_max_position_embeddings"},
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
}
ALWAYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


class Rope(NamedTuple):
    """Rotary frequencies theta^(-2i/K) / divisor, or scaled otherwise."""

    theta: float
    divisor: float = 1.0
    scaling: RopeScaling | None = None

    def settings(self) -> dict[str, Any]:
        """As fields of an `EncoderConfig`."""
        return {"rope_theta": self.theta, "rope_divisor": self.divisor, "rope_scaling": self.scaling}


def find_rope(config: Mapping[str, Any], base: float | None = None) -> Rope:
    """The rotary positions of a network with one kind of layers; `base` is what `transformers` takes otherwise."""
    return read_rope(
        one_entry(config), theta=config.get("rope_theta", base), positions=config["max_position_embeddings"]
    )


def one_entry(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `rope_parameters` says, or in older files `rope_scaling`; empty if neither is there."""
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    if new and old:
        require_agreement({"rope_parameters": new, "rope_scaling": old})
    entry: Mapping[str, Any] = new or old or {}
    base, other = config.get("rope_theta"), entry.get("rope_theta")
    if base is not None and other is not None:
        require_agreement({"rope_theta": base, "rope_theta of rope_parameters": other})
    return entry


def two_ropes(
    config: Mapping[str, Any],
    said: Mapping[str, Any],
    bases: Mapping[str, float],
    near_layers: Sequence[int],
    *,
    scaling: Mapping[str, Any] | None = None,
) -> tuple[Rope, Rope]:
    """The rotary positions of global and of local layers, which `near_layers` are.

    `said` is the base of each kind of layer, if a setting of its own gives one; `bases` is what `transformers` takes
    otherwise; `scaling` is what files without `rope_parameters` say of global layers.
    """
    parameters = config.get("rope_parameters")
    if parameters is not None and scaling:
        raise UnsupportedModel("config.json says rope_parameters and rope_scaling: which is right?")
    if unknown := sorted(set(parameters or {}) - {GLOBAL, LOCAL}):
        raise UnsupportedModel(f"rope_parameters has {', '.join(unknown)}: {GLOBAL} and {LOCAL} are known")
    found = []
    for kind in (GLOBAL, LOCAL):
        given = {GLOBAL: scaling} if parameters is None else parameters
        entry = one_entry({"rope_parameters": given.get(kind), "rope_theta": said[kind]})
        theta = bases[kind] if said[kind] is None else said[kind]
        found.append(read_rope(entry, theta=theta, positions=config["max_position_embeddings"]))
    far, near = found
    if near_layers and (far.divisor, far.scaling) != (near.divisor, near.scaling):
        raise UnsupportedModel("rotary positions of local and global layers are scaled by different factors")
    return far, near


def read_rope(parameters: Mapping[str, Any], *, theta: object, positions: int | None = None) -> Rope:
    """Reads one entry of `rope_parameters`, as `transformers` writes it since release 5.

    `theta` is the base and `positions`, the longest text, is the original length where the entry does not say.
    """
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if unknown := sorted(set(parameters) - choose({"rope_type": kind}, "rope_type", SETTINGS) - ALWAYS):
        raise UnsupportedModel(
            f"rope_parameters of type {kind} has {', '.join(unknown)}: this type has no such setting"
        )
    if (share := parameters.get("partial_rotary_factor", 1.0)) != 1:
        raise UnsupportedModel(f"partial_rotary_factor {share}: 1 is supported, every dimension is turned")
    base = parameters.get("rope_theta", theta)
    if base is None:  # which as a local base would mean the global one
        raise UnsupportedModel("rope_theta None: expected a positive number")
    if kind in ("default", "linear"):
        return Rope(base, parameters["factor"] if kind == "linear" else 1.0)
    original = parameters.get("original_max_position_embeddings", positions)
    return Rope(base, 1.0, _read_scaling(kind, {**parameters, "original_max_position_embeddings": original}))


def _read_scaling(kind: str, parameters: Mapping[str, Any]) -> RopeScaling:
    original, factor = parameters["original_max_position_embeddings"], parameters["factor"]
    if kind == "llama3":
        low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
        return RopeScaling(kind="llama3", factor=factor, original_positions=original, low=low, high=high)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_positions=original,
        low=parameters.get("beta_slow") or 1.0,
        high=parameters.get("beta_fast") or 32.0,
        magnitude=_yarn_magnitude(parameters, factor),
        whole_pairs=parameters.get("truncate", True),
    )


def _yarn_magnitude(parameters: Mapping[str, Any], factor: float) -> float:
    """0.1 ln(factor) + 1 where the entry says nothing else (Peng et al. 2024, equation 22)."""
    if (said := parameters.get("attention_factor")) is not None:
        return float(said)

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    one, all_dimensions = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return magnitude(one) / magnitude(all_dimensions) if one and all_dimensions else magnitude(1.0)
