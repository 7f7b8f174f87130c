"""Bodies of errors: ours, which is OpenAI's, and those of the APIs that write failures in another shape.

A route declares its shape, so that failures from outside the route (no key, overload, an unexpected exception) have it
too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from service.errors import InternalError, NotReady, Overloaded, ServiceError
from service.wire import AnswerModel


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
    """How one API writes a failure.

    Attributes:
        model: describes the body for OpenAPI.
        body: makes it.
    """

    model: type[BaseModel]
    body: Callable[[ServiceError], dict[str, Any]]


def _tei_body(error: ServiceError) -> dict[str, Any]:
    kinds = {NotReady: "Unhealthy", Overloaded: "Overloaded", InternalError: "Backend"}
    kind = next((kind for known, kind in kinds.items() if isinstance(error, known)), None)
    return {"error": error.message, "error_type": kind or ("Validation" if error.status < 500 else "Backend")}


def _inference_body(error: ServiceError) -> dict[str, Any]:
    return {"error": error.message}


def _cohere_body(error: ServiceError) -> dict[str, Any]:
    return {"message": error.message}


OURS = ErrorShape(FailureAnswer, ServiceError.body)
TEI = ErrorShape(TeiFailure, _tei_body)
INFERENCE_PROTOCOL = ErrorShape(InferenceFailure, _inference_body)
COHERE = ErrorShape(CohereFailure, _cohere_body)
