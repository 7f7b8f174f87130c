"""Flags of the command line as fields of dataclasses: a setting is described once, where it is defined."""

import argparse
from collections.abc import Collection
from dataclasses import MISSING, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from export.command import number

Settings = TypeVar("Settings")

several = number(int, lambda value: value > 1, "a whole number above 1, as intervals need two")


def flag(text: str, default: Any = MISSING, *, name: str = "", is_alternative: bool = False, **options: Any) -> Any:
    """A field that a flag sets.

    Args:
        text: what `--help` says.
        default: the field's; a flag without one is required.
        name: of the flag; empty for the field's own.
        is_alternative: whether at most one of the dataclass's flags of this kind may be given.
        options: of `add_argument`, where the field's type does not say them.
    """
    described = {"name": name, "is_alternative": is_alternative, "help": text, **options}
    return field(default=default, metadata=described)


def model_flag(text: str) -> Any:
    """The field `model`: a hub id, a folder or an artifact, which stands without a flag; None for the default model."""
    return flag(f"{text} (default: the default model)", None, name="model", nargs="?", metavar="MODEL")


def add_flags(made: argparse._ActionsContainer, kind: type, names: Collection[str] = ()) -> None:
    """Adds the flags of a dataclass of settings and of those within it; with `names` the flags of these fields."""
    alternatives: argparse._ActionsContainer | None = None
    for each in fields(kind):
        if is_dataclass(each.type):
            add_flags(made, each.type)  # type: ignore[arg-type]
        if not each.metadata or (names and each.name not in names):
            continue
        default = None if each.default is MISSING else each.default
        options = {**_options_of(each.type), "default": default, **each.metadata}
        name, place = options.pop("name"), made
        if options.pop("is_alternative"):
            place = alternatives = alternatives or made.add_mutually_exclusive_group()
        if name != each.name:
            options = {"dest": each.name, "required": each.default is MISSING, **options}
        place.add_argument(name or f"--{each.name.replace('_', '-')}", **options)


def _options_of(kind: Any) -> dict[str, Any]:
    """What a field's type says of its flag."""
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) is tuple:
        return {"nargs": "+", **_options_of(get_args(kind)[0])}
    return {"type": Path} if Path in (kind, *get_args(kind)) else {}


def settings_of(kind: type[Settings], options: argparse.Namespace) -> Settings:
    """A dataclass of settings, and those within it, with what the flags of its fields' names gave."""
    given: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if is_dataclass(each.type):
            given[each.name] = settings_of(each.type, options)  # type: ignore[arg-type]
        elif hasattr(options, each.name):
            value = getattr(options, each.name)
            given[each.name] = tuple(value) if isinstance(value, list) else value
    return kind(**given)
