"""JSON as the types of annotations: objects become dataclasses, lists tuples; what has another type is refused by name.

Standard library only: the service reads its manifest with this.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

T = TypeVar("T")
SCALARS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
}


class JsonTypeError(Exception):
    """A value is of another type than its field, or a field is unknown or missing; the message names it."""


def read_object(data: Any, kind: type[T], name: str) -> T:
    """An object of JSON, in a field of this name, as a dataclass; one that has `from_dict` reads itself.

    Raises:
        JsonTypeError: as above, or it is no object.
    """
    if not isinstance(data, Mapping):
        raise _wrong(name, "an object", data)
    if (own := getattr(kind, "from_dict", None)) is not None:
        read: T = own(data)
        return read
    return kind(**read_fields(data, kind, name))


def read_fields(data: Mapping[str, Any], kind: type, name: str = "") -> dict[str, Any]:
    """The values of a dataclass's fields; those that have a default may be absent. `name` is empty at the top."""
    known = {field.name: field for field in fields(kind)}
    inside = f"{name}." if name else ""
    if unknown := sorted(set(data) - set(known)):
        raise JsonTypeError(f"{inside}{unknown[0]} is unknown: this version knows {', '.join(known)}")
    for field in known.values():
        if field.name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise JsonTypeError(f"{inside}{field.name} is missing")
    return {field: read_value(value, known[field].type, inside + field) for field, value in data.items()}


def read_value(value: Any, kind: Any, name: str) -> Any:
    """A value of JSON as an annotation has it: scalar, `tuple`, `Mapping`, dataclass, `Any`, or one of them or None."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    outer, inner = get_origin(kind), get_args(kind)
    if type(None) in inner:
        return None if value is None else read_value(value, next(one for one in inner if one is not type(None)), name)
    if is_dataclass(kind) and isinstance(kind, type):
        return read_object(value, kind, name)
    if outer is tuple:
        return _read_tuple(value, inner, name)
    if outer is Mapping:
        if not isinstance(value, Mapping):
            raise _wrong(name, "an object", value)
        return {key: read_value(item, inner[1], f"{name}.{key}") for key, item in value.items()}
    if kind is Any:
        return value
    types, expected = SCALARS[str if outer is Literal else kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(name, expected, value)
    return value


def _read_tuple(value: Any, inner: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(name, "a list", value)
    kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
    if len(kinds) != len(value):
        raise _wrong(name, f"a list of {len(kinds)}", value)
    return tuple(
        read_value(item, kind, f"{name}[{index}]") for index, (item, kind) in enumerate(zip(value, kinds, strict=True))
    )


def _wrong(name: str, expected: str, value: Any) -> JsonTypeError:
    return JsonTypeError(f"{name} is {value!r:.100}: expected {expected}")
