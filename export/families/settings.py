"""Settings of config.json that make it another network than the one built here."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from export.errors import UnsupportedModel

ROPE_SETTINGS = {"rope_type", "type", "rope_theta", "factor"}


class Rope(NamedTuple):
    """Rotary frequencies theta^(-2i/K) / divisor."""

    theta: float
    divisor: float = 1.0


def require_settings(config: Mapping[str, Any], known: Mapping[str, tuple[object, ...]]) -> None:
    """Refuses values that no part of the encoder stands for.

    Args:
        config: config.json.
        known: name -> values that are reproduced, the first of them where config.json does not say.

    Raises:
        UnsupportedModel: names the first other value.
    """
    for name, values in known.items():
        if config.get(name, values[0]) not in values:
            supported = ", ".join(repr(value) for value in values)
            raise UnsupportedModel(f"{name} {config[name]!r}: {supported} is supported")


def refuse_remote_code(config: Mapping[str, Any], reproduced: tuple[str, ...]) -> None:
    """Refuses a network whose `auto_map` names classes of the model's own code, which is never run.

    Args:
        config: config.json.
        reproduced: beginnings of the names of classes that the family computes the same as.

    Raises:
        UnsupportedModel: names the first other class.
    """
    for role, named in (config.get("auto_map") or {}).items():
        for name in named if isinstance(named, list) else [named]:
            if name is not None and not name.rpartition(".")[-1].startswith(reproduced):
                raise UnsupportedModel(f"auto_map names {name} as {role}: code of a model's own is never run")


def read_rope(parameters: Mapping[str, Any], *, theta: object = None) -> Rope:
    """Reads one entry of `rope_parameters`, as `transformers` writes it since release 5.

    Args:
        parameters: the entry.
        theta: the base where the entry does not say.

    Raises:
        UnsupportedModel: frequencies of another kind than plain ones or linearly scaled ones.
    """
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "linear"):
        raise UnsupportedModel(f"rope_type {kind!r}: default and linear are supported")
    if unknown := sorted(set(parameters) - ROPE_SETTINGS):
        raise UnsupportedModel(
            f"rope_parameters has {', '.join(unknown)}: {', '.join(sorted(ROPE_SETTINGS))} are known"
        )
    divisor = positive(parameters, "factor") if kind == "linear" else 1.0
    return Rope(positive({"rope_theta": theta, **parameters}, "rope_theta"), divisor)


def positive(settings: Mapping[str, Any], name: str) -> float:
    """A positive number.

    Raises:
        KeyError: the setting is not there.
        UnsupportedModel: it is something else.
    """
    value = settings[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UnsupportedModel(f"{name} {value!r}: expected a positive number")
    return float(value)
