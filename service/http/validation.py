"""Pydantic's problems with a request as one line for the caller. The line never holds a value that was sent."""

import difflib
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from service.errors import Invalid, MalformedBody, ServiceError

M = TypeVar("M", bound=BaseModel)

_PROBLEMS_SHOWN = 5
_PROBLEMS_READ = 1000
_NAME_SHOWN = 64  # characters of a field name, which may be a caller's own


def validate_value(model: type[M], value: Any) -> M:
    """Validates what is parsed already.

    Raises:
        Invalid: the model does not take it. The message never holds a value that was sent.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise explain_validation(error, model) from None


def explain_validation(error: ValidationError, model: type[BaseModel]) -> ServiceError:
    """The error to answer: `MalformedBody` where the body is not JSON, else `Invalid`."""
    if (count := error.error_count()) > _PROBLEMS_READ:  # a description of each would take more than the body
        return Invalid(f"{count} values are not what this route takes; send one of them alone to be told why")
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    if problems[0]["type"] == "json_invalid":
        return MalformedBody(f"the body is no valid JSON: {problems[0]['msg'].removeprefix('Invalid JSON: ')}")
    places = [_place(problem, model) for problem in problems[:_PROBLEMS_SHOWN]]
    messages = [_message(problem, model) for problem in problems[:_PROBLEMS_SHOWN]]
    texts = [f"{place}: {message}" if place else message for place, message in zip(places, messages, strict=True)]
    if count > _PROBLEMS_SHOWN:
        texts.append(f"and {count - _PROBLEMS_SHOWN} more")
    return Invalid("; ".join(texts), param=places[0] or None)


def _place(problem: Any, model: type[BaseModel]) -> str:
    """The field as a dotted path. Pydantic adds the type that was tried where a field may have several."""
    *path, last = problem["loc"] or ("",)
    is_type = isinstance(last, str) and bool(path) and last not in _fields(model, path)
    kept = path if is_type and problem["type"] != "extra_forbidden" else problem["loc"]
    return ".".join(str(part)[:_NAME_SHOWN] for part in kept)


def _message(problem: Any, model: type[BaseModel]) -> str:
    """Pydantic's message. For an unknown field it says "extra inputs", as if `inputs` held too many."""
    if problem["type"] != "extra_forbidden":
        return str(problem["msg"].removeprefix("Value error, "))
    *path, name = problem["loc"]
    meant = difflib.get_close_matches(str(name)[:_NAME_SHOWN], _fields(model, path), n=1)
    return f"no such field (did you mean {meant[0]}?)" if meant else "no such field"


def _fields(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """The fields of a model, or of the model at `path` inside it; none where `path` leads to no single model."""
    for name in path:
        if isinstance(name, int):  # an item of a list: the field's type says of what
            continue
        field = model.model_fields.get(name)
        nested = _models(field.annotation) if field else []
        if len(nested) != 1:
            return []
        model = nested[0]
    return list(model.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models in a type, those in its unions and lists included."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for part in typing.get_args(annotation) for model in _models(part)]
