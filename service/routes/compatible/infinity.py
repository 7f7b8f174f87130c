"""Infinity's `POST /embeddings` and `GET /models`: OpenAI's, at the paths that it has without a prefix.

TEI answers `/embeddings` too. Usage is in tokens, where Infinity counts characters unless told otherwise.
"""

from typing import Annotated, Any, Literal

import orjson
from fastapi import FastAPI
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from service.errors import InternalError, NotReady, Unauthorized
from service.http.failures import INFERENCE_FAILURES, failure_documents
from service.http.media import JSON
from service.http.openapi import QUEUED_REQUEST, answer_document
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


def add_routes(app: FastAPI) -> None:
    """Adds the routes."""
    app.add_api_route(
        "/embeddings",
        answer_infinity,
        methods=["POST"],
        tags=[TAG],
        summary="Embeddings, as Infinity's",
        response_model=None,
        responses={**embeddings_document(EmbeddingsAnswer, EXAMPLE), **failure_documents(*INFERENCE_FAILURES)},
        openapi_extra=QUEUED_REQUEST,
    )
    stats = {"queue_fraction": 0.0, "queue_absolute": 0.0}
    example = {**MODEL_EXAMPLE, "backend": "onnxruntime", "capabilities": ["embed"], "stats": stats}
    app.add_api_route(
        "/models",
        answer_models,
        methods=["GET"],
        tags=[TAG],
        summary="The models served, as Infinity's",
        response_model=None,
        responses={
            **answer_document(InfinityModels, {"object": "list", "data": [example]}),
            **failure_documents(Unauthorized, NotReady, InternalError),
        },
    )


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
