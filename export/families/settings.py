"""Settings of config.json that make it another network than the one built here."""

from collections.abc import Mapping, Sequence
from typing import Any

from export.errors import UnsupportedModel


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


GLOBAL, LOCAL = "full_attention", "sliding_attention"


def local_layers(kinds: Sequence[str], layers: int) -> tuple[int, ...]:
    """The layers that `layer_types` says see a window.

    Raises:
        UnsupportedModel: it names another kind, or another number of layers.
    """
    if len(kinds) != layers or not set(kinds) <= {GLOBAL, LOCAL}:
        raise UnsupportedModel(f"layer_types {kinds}: expected {GLOBAL} or {LOCAL} for each of {layers} layers")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == LOCAL)
