"""The Open Inference Protocol (KServe V2) over REST, for KServe, Knative and Triton's clients.

One input tensor of texts in, one tensor of embeddings out; tensors are JSON, or bytes behind the JSON where the client
uses Triton's binary tensor extension. https://github.com/kserve/open-inference-protocol
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.errors import InternalError, ModelNotFound, NotReady, Unauthorized, UnsupportedMedia
from service.http.body import Handler, check_accept, read_body
from service.http.error_shapes import INFERENCE_PROTOCOL
from service.http.failures import INFERENCE_FAILURES, failure_documents
from service.http.keys import OPEN_ROUTES
from service.http.media import JSON
from service.http.openapi import QUEUED_REQUEST, answer_document
from service.http.pieces import respond
from service.operations.encode import timed
from service.routes.compatible.adapter import check_model, run_for, truncation_header
from service.routes.compatible.inference_schemas import (
    InferenceAnswer,
    InferenceRequest,
    ModelMetadata,
    ModelReady,
    ServerLive,
    ServerMetadata,
    ServerReady,
)
from service.routes.compatible.inference_tensors import (
    BINARY_LAYOUT,
    DATA,
    HEADER_LENGTH,
    OUTPUT,
    read_request,
    write_answer,
)
from service.services import services_of
from service.tokenization.inputs import InputNames
from service.versions import own_version

TAG = "Open Inference Protocol"
INFER = "/v2/models/{model:path}/infer"
MODEL_VERSION = "1"
MODEL_PARAMETER = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": 'may hold slashes; "/versions/1" may follow it',
    "schema": {"type": "string", "minLength": 1},
}
BINARY = "application/octet-stream"  # JSON with binary tensors behind it
REQUEST_BODY = {
    "required": True,
    "content": {
        JSON: {"schema": InferenceRequest.model_json_schema(ref_template="#/components/schemas/{model}")},
        BINARY: {"schema": {"type": "string", "format": "binary", "description": BINARY_LAYOUT}},
    },
}
EXAMPLE = {
    "model_name": "sentence-transformers/all-MiniLM-L6-v2",
    "model_version": MODEL_VERSION,
    "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [1, 3], "data": [0.0312, -0.0519, 0.0447]}],
}


def add_routes(app: FastAPI) -> None:
    """Adds the routes, narrower paths first: a model's name may hold slashes."""
    _add_get(app, "/v2", answer_server, "The server and its extensions", ServerMetadata)
    _add_get(app, "/v2/health/live", answer_live, "Does the process live?", ServerLive)
    _add_get(app, "/v2/health/ready", answer_ready, "May traffic come?", ServerReady)
    app.add_api_route(
        INFER,
        answer_infer,
        methods=["POST"],
        tags=[TAG],
        summary="Embeddings, as tensors",
        response_model=None,
        responses={
            **answer_document(InferenceAnswer, EXAMPLE),
            **failure_documents(*INFERENCE_FAILURES, ModelNotFound, shape=INFERENCE_PROTOCOL),
        },
        openapi_extra={"parameters": [MODEL_PARAMETER, *QUEUED_REQUEST["parameters"]], "requestBody": REQUEST_BODY},
    )
    _add_get(app, "/v2/models/{model:path}/ready", answer_model_ready, "May requests to it come?", ModelReady)
    _add_get(app, "/v2/models/{model:path}", answer_model, "The model's tensors", ModelMetadata)


async def answer_server(_request: Request) -> Response:
    """Name, version and extensions."""
    return _json({"name": "polyhead", "version": own_version(), "extensions": ["binary_tensor_data"]})


async def answer_live(request: Request) -> Response:
    """As `GET /healthz`."""
    services_of(request).readiness.check_alive()
    return _json({"live": True})


async def answer_ready(request: Request) -> Response:
    """As `GET /readyz`."""
    services_of(request).readiness.check_ready()
    return _json({"ready": True})


async def answer_model_ready(request: Request) -> Response:
    """As `GET /readyz`, for the one model."""
    name = check_model(request, version=MODEL_VERSION)
    services_of(request).readiness.check_ready()
    return _json({"name": name, "ready": True})


async def answer_model(request: Request) -> Response:
    """What goes in and what comes out."""
    if context_of(request.scope).route == INFER:  # taken for a model whose name ends so
        raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED)
    name = check_model(request, version=MODEL_VERSION)
    size = services_of(request).readiness.runner().config.embedding_size
    return _json(
        {
            "name": name,
            "versions": [MODEL_VERSION],
            "platform": "onnxruntime_onnx",
            "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
            "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1, size]}],
        }
    )


async def answer_infer(request: Request) -> Response:
    """One row of `embeddings` a text, in their order.

    It reads its body itself: binary tensors stand behind the JSON.
    """
    services, headers = services_of(request), context_of(request.scope).headers
    name = check_model(request, version=MODEL_VERSION)
    _check_media(headers)
    with services.body_budget.share() as share:
        raw = await read_body(request.receive, headers, services.settings.max_body_bytes, share)
        inference, texts = read_request(raw, headers.get(HEADER_LENGTH))
        encoded = await run_for(request, inference.to_encode(texts), names=InputNames(DATA))
    with timed(services.metrics, "serialize"):
        body, header_length = await write_answer(inference, encoded, name, MODEL_VERSION)
    extra = truncation_header(request)
    if header_length is None:
        return respond([body], JSON, extra)
    extra[HEADER_LENGTH.decode("ascii")] = str(header_length)
    return respond([body], BINARY, extra)


def _check_media(headers: Mapping[bytes, bytes]) -> None:
    """JSON, with bytes behind it or not; no type means that, because Triton's client sends none. Nothing compressed."""
    content_type = headers.get(b"content-type", JSON.encode()).partition(b";")[0].strip().lower().decode("latin-1")
    if content_type not in ((JSON, BINARY) if HEADER_LENGTH in headers else (JSON,)):
        raise UnsupportedMedia(
            "Content-Type: expected application/json, or application/octet-stream with Inference-Header-Content-Length",
            param="Content-Type",
        )
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedMedia("Content-Encoding: the body must not be compressed", param="Content-Encoding")
    check_accept(headers, (JSON, BINARY))  # which of them the request's outputs say


def _add_get(app: FastAPI, path: str, endpoint: Handler, summary: str, answer: type[BaseModel]) -> None:
    names_model = "{" in path
    closed = () if ("GET", path) in OPEN_ROUTES else (Unauthorized,)
    failures = (*closed, NotReady, InternalError, *((ModelNotFound,) if names_model else ()))
    app.add_api_route(
        path,
        endpoint,
        methods=["GET"],
        tags=[TAG],
        summary=summary,
        response_model=None,
        responses={**answer_document(answer, None), **failure_documents(*failures, shape=INFERENCE_PROTOCOL)},
        openapi_extra={"parameters": [MODEL_PARAMETER]} if names_model else None,
    )


def _json(answer: dict[str, Any]) -> Response:
    return Response(orjson.dumps(answer), media_type=JSON)
