"""How bodies are modelled: requests strictly, answers for their description; and what is wrong with a body."""

import difflib
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from service.errors import InternalError, Invalid, MalformedBody, NotReady, Overloaded, ServiceError

M = TypeVar("M", bound=BaseModel)

_PROBLEMS_SHOWN = 5
_PROBLEMS_READ = 1000
_NAMES_OF_TEXTS = {"text", "texts", "sentences", "documents"}  # what other services call `inputs`
_TYPE = re.compile(r"list\[|[A-Z]")  # what pydantic puts into a path where a field may have several; no name is such
_NAME_SHOWN = 64  # characters of a field name, which may be a caller's own

Piece = bytes | memoryview
"""Of an answer's body; a memoryview is of single bytes, and shares an array's memory."""


class RequestModel(BaseModel):
    """A request body: no value is coerced, no field is unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class AnswerModel(BaseModel):
    """An answer's body; describes it for OpenAPI, answers are not built through it."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class Failure(AnswerModel):
    """The inside of our error body."""

    message: str
    type: str
    param: str | None
    """the field or header at fault"""
    code: str


class FailureAnswer(AnswerModel):
    """Every failure on every route has this body."""

    error: Failure


class JinaFailureAnswer(FailureAnswer):
    """Our body of a failure, and its message where Jina's clients look for it."""

    detail: str


class TeiFailure(AnswerModel):
    """A failure as text-embeddings-inference writes it."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation"]


class InferenceFailure(AnswerModel):
    """A failure as the Open Inference Protocol writes it."""

    error: str


class CohereFailure(AnswerModel):
    """A failure as Cohere writes it."""

    message: str


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How one API writes a failure: its body, and the model that describes that for OpenAPI."""

    model: type[BaseModel]
    body: Callable[[ServiceError], dict[str, Any]]


def _tei_body(error: ServiceError) -> dict[str, Any]:
    kinds = {NotReady: "Unhealthy", Overloaded: "Overloaded", InternalError: "Backend"}
    kind = next((kind for known, kind in kinds.items() if isinstance(error, known)), None)
    return {"error": error.message, "error_type": kind or ("Validation" if error.status < 500 else "Backend")}


OURS = ErrorShape(FailureAnswer, ServiceError.body)
JINA = ErrorShape(JinaFailureAnswer, lambda error: {**error.body(), "detail": error.message})
TEI = ErrorShape(TeiFailure, _tei_body)
INFERENCE_PROTOCOL = ErrorShape(InferenceFailure, lambda error: {"error": error.message})
COHERE = ErrorShape(CohereFailure, lambda error: {"message": error.message})


def validate(model: type[M], value: Any) -> M:
    """Validates a body: bytes of JSON, or a value that is parsed already.

    Raises:
        MalformedBody: the bytes are not JSON.
        Invalid: the model does not take it. The message never holds a value that was sent.
    """
    try:
        return model.model_validate_json(value) if isinstance(value, bytes) else model.model_validate(value)
    except ValidationError as error:
        raise explain_validation(error, model) from None


def explain_validation(error: ValidationError, model: type[BaseModel]) -> ServiceError:
    """The error to answer: `MalformedBody` where the body is not JSON, else `Invalid`."""
    if (count := error.error_count()) > _PROBLEMS_READ:  # a description of each would take more than the body
        return Invalid(f"{count} values are not what this route takes; send one of them alone to be told why")
    problems = _of_one_alternative(error.errors(include_url=False, include_context=False, include_input=False))
    if problems[0]["type"] == "json_invalid":
        return MalformedBody(f"the body is no valid JSON: {problems[0]['msg'].removeprefix('Invalid JSON: ')}")
    described = [_describe(problem, model) for problem in problems[:_PROBLEMS_SHOWN]]
    texts = [f"{place}: {message}" if place else message for place, message in described]
    if len(problems) > _PROBLEMS_SHOWN:
        texts.append(f"and {len(problems) - _PROBLEMS_SHOWN} more")
    return Invalid("; ".join(dict.fromkeys(texts)), param=described[0][0] or None)


def _of_one_alternative(problems: list[Any]) -> list[Any]:
    """Leaves out that a list is no text or name, where the list is wrong in another way: a field may be either."""
    lists = {
        problem["loc"][:place]
        for problem in problems
        for place, part in enumerate(problem["loc"])
        if str(part).startswith("list[") and problem["type"] != "list_type"
    }
    others = {"string_type", "literal_error"}
    return [problem for problem in problems if problem["type"] not in others or problem["loc"][:-1] not in lists]


def _describe(problem: Any, model: type[BaseModel]) -> tuple[str, str]:
    """The field as a dotted path, and pydantic's message.

    To the path pydantic adds the type that was tried, where a field may have several. Of an unknown field it says
    "extra inputs", as if `inputs` held too many.
    """
    *path, last = problem["loc"] or ("",)
    path = [part for part in path if not _TYPE.match(str(part))]
    known, is_unknown = _fields(model, path), problem["type"] == "extra_forbidden"
    is_type = isinstance(last, str) and bool(path) and last not in known
    place = ".".join(str(part)[:_NAME_SHOWN] for part in (path if is_type and not is_unknown else [*path, last]))
    if problem["type"] == "string_pattern_mismatch":
        return place, f"expected {model.model_fields[problem['loc'][0]].description}"
    if not is_unknown:
        return place, str(problem["msg"].removeprefix("Value error, "))
    if last in _NAMES_OF_TEXTS and "inputs" in known:
        return place, "no such field (did you mean inputs?)"
    meant = difflib.get_close_matches(str(last)[:_NAME_SHOWN], known, n=1)
    return place, f"no such field (did you mean {meant[0]}?)" if meant else "no such field"


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
