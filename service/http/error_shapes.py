"""Bodies of errors: ours, which is OpenAI's, and those of the APIs that speak another.

A failure may come from outside a route (refused early, not ready, unexpected), so its shape goes by the route's name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel

from service.errors import InternalError, NotReady, Overloaded, ServiceError
from service.requests.schemas import FailureAnswer
from service.wire import AnswerModel


class TeiFailure(AnswerModel):
    """A failure as text-embeddings-inference writes it."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation"]


class InferenceFailure(AnswerModel):
    """A failure as the Open Inference Protocol writes it."""

    error: str


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How one API writes a failure: the model that describes it, and the body."""

    model: type[BaseModel]
    body: Callable[[ServiceError], dict[str, Any]]


def _tei_body(error: ServiceError) -> dict[str, Any]:
    kinds = {NotReady: "Unhealthy", Overloaded: "Overloaded", InternalError: "Backend"}
    kind = next((kind for known, kind in kinds.items() if isinstance(error, known)), None)
    return {"error": error.message, "error_type": kind or ("Validation" if error.status < 500 else "Backend")}


def _inference_body(error: ServiceError) -> dict[str, Any]:
    return {"error": error.message}


OURS = ErrorShape(FailureAnswer, ServiceError.body)
TEI = ErrorShape(TeiFailure, _tei_body)
INFERENCE_PROTOCOL = ErrorShape(InferenceFailure, _inference_body)

SHAPES: Mapping[str, ErrorShape] = MappingProxyType(
    {
        "/embed": TEI,
        "/embed_all": TEI,
        "/health": TEI,
        "/v2": INFERENCE_PROTOCOL,
        "/v2/health/live": INFERENCE_PROTOCOL,
        "/v2/health/ready": INFERENCE_PROTOCOL,
        "/v2/models/{model:path}": INFERENCE_PROTOCOL,
        "/v2/models/{model:path}/ready": INFERENCE_PROTOCOL,
        "/v2/models/{model:path}/infer": INFERENCE_PROTOCOL,
    }
)
"""By route, whatever the method; others have ours."""


def error_body(error: ServiceError, method: str, route: str) -> dict[str, Any]:
    """What a route answers to a failure."""
    shape = TEI if (method, route) == ("POST", "/") else SHAPES.get(route, OURS)  # GET / is the viewer
    return shape.body(error)
