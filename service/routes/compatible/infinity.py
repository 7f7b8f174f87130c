"""Infinity's `POST /embeddings` and `GET /models`: OpenAI's, at the paths that it has without a prefix.

TEI answers `/embeddings` too. Usage is in tokens, where Infinity counts characters unless told otherwise.
"""

from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from service.errors import NotReady
from service.http.media import JSON
from service.http.route import Route, answer_document
from service.routes.compatible.adapter import embeddings_document
from service.routes.compatible.openai import (
    EXAMPLE,
    MODEL_EXAMPLE,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    Model,
    answer_embeddings,
    describe_model,
)
from service.services import services_of
from service.wire import AnswerModel

TAG = "Infinity"


class InfinityRequest(EmbeddingsRequest):
    """Infinity's request: OpenAI's, fields that neither knows ignored, as Infinity does."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [{"input": "The cat sat on the mat."}]})

    dimensions: Annotated[int, Field(ge=0)] | None = 0
    """keep the first so many dimensions, and normalise again; 0 keeps all"""
    modality: Literal["text"] = "text"
    """only texts are encoded here"""


class InfinityModel(Model):
    """The model that is served, as Infinity describes one."""

    backend: str
    capabilities: list[str]
    stats: dict[str, float]
    """`queue_fraction`: tokens waiting, of those that may; `queue_absolute`: texts waiting"""


class InfinityModels(AnswerModel):
    """The models that are served: one."""

    object: Literal["list"]
    data: list[InfinityModel]


async def answer_infinity(request: Request, body: InfinityRequest) -> Response:
    """One normalised vector an input, in their order."""
    return await answer_embeddings(request, body.model_copy(update={"dimensions": body.dimensions or None}))


async def answer_models(request: Request) -> Response:
    """A list of one, with the state of its queue."""
    services = services_of(request)
    runner = services.readiness.runner()
    described: dict[str, Any] = {
        **describe_model(request),
        "backend": "onnxruntime",
        "capabilities": ["embed"],
        "stats": {
            "queue_fraction": runner.queued_tokens / services.settings.max_queue_tokens,
            "queue_absolute": float(runner.queued_texts),
        },
    }
    return Response(orjson.dumps({"object": "list", "data": [described]}), media_type=JSON)


MODELS_EXAMPLE = {
    **MODEL_EXAMPLE,
    "backend": "onnxruntime",
    "capabilities": ["embed"],
    "stats": {"queue_fraction": 0.0, "queue_absolute": 0.0},
}

ROUTES = (
    Route(
        "POST",
        "/embeddings",
        answer_infinity,
        is_queued=True,
        tag=TAG,
        summary="Embeddings, as Infinity's",
        answer=embeddings_document(EmbeddingsAnswer, EXAMPLE),
    ),
    Route(
        "GET",
        "/models",
        answer_models,
        tag=TAG,
        summary="The models served, as Infinity's",
        answer=answer_document(InfinityModels, {"object": "list", "data": [MODELS_EXAMPLE]}),
        raises=(NotReady,),
    ),
)
