"""The Open Inference Protocol (KServe V2) over REST, for KServe, Knative and Triton's clients.

One input tensor of texts in, one tensor of embeddings out; tensors are JSON, or bytes behind the JSON where the client
uses Triton's binary tensor extension. https://github.com/kserve/open-inference-protocol
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.error_shapes import INFERENCE_PROTOCOL
from service.errors import ModelNotFound, NotReady, UnsupportedMedia
from service.http.body import check_accept, read_body
from service.http.media import JSON
from service.http.pieces import respond
from service.http.route import Route, answer_document
from service.operations.encode import timed
from service.routes.compatible.adapter import check_model, require_task, run_for, truncation_header
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
MODEL_VERSION = "1"
MODEL_IN_PATH = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": 'may hold slashes; "/versions/1" may follow it',
    "schema": {"type": "string", "minLength": 1},
}
BINARY = "application/octet-stream"  # JSON followed by binary tensors
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
HEADERS = {
    HEADER_LENGTH.decode("ascii"): {
        "description": "bytes of JSON before the binary tensors, where there are some",
        "schema": {"type": "integer"},
    }
}


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
    require_task(request, "embedding")
    _check_media(headers)
    with services.body_budget.share() as share:
        raw = await read_body(request.receive, headers, services.settings.max_body_bytes, share)
        inference, texts = await read_request(raw, headers.get(HEADER_LENGTH), services.settings)
        encoded = await run_for(request, inference.to_encode(texts), names=InputNames(DATA))
    with timed(services.metrics, "serialize"):
        body, header_length = await write_answer(inference, encoded, name, MODEL_VERSION)
    extra = truncation_header(request)
    if header_length is None:
        return respond([body], JSON, extra)
    extra[HEADER_LENGTH.decode("ascii")] = str(header_length)
    return respond([body], BINARY, extra)


def _check_media(headers: Mapping[bytes, bytes]) -> None:
    """Checks for JSON, with binary tensors behind it or not. Triton's client sends no type, which means JSON."""
    content_type = headers.get(b"content-type", JSON.encode()).partition(b";")[0].strip().lower().decode("latin-1")
    if content_type not in ((JSON, BINARY) if HEADER_LENGTH in headers else (JSON,)):
        raise UnsupportedMedia(
            "Content-Type: expected application/json, or application/octet-stream with Inference-Header-Content-Length",
            param="Content-Type",
        )
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedMedia("Content-Encoding: the body must not be compressed", param="Content-Encoding")
    check_accept(headers, (JSON, BINARY))  # the request's `outputs` choose between the two


def _json(answer: dict[str, Any]) -> Response:
    return Response(orjson.dumps(answer), media_type=JSON)


_get = partial(Route, "GET", tag=TAG, error_shape=INFERENCE_PROTOCOL)
_probe = partial(_get, access="everyone", is_probe=True, raises=(NotReady,))
_of_model = partial(_get, raises=(NotReady, ModelNotFound), parameters=(MODEL_IN_PATH,))

ROUTES = (
    _get("/v2", answer_server, summary="The server and its extensions", answer=answer_document(ServerMetadata)),
    _probe("/v2/health/live", answer_live, summary="Does the process live?", answer=answer_document(ServerLive)),
    _probe("/v2/health/ready", answer_ready, summary="May traffic come?", answer=answer_document(ServerReady)),
    Route(
        "POST",
        "/v2/models/{model:path}/infer",
        answer_infer,
        is_queued=True,
        error_shape=INFERENCE_PROTOCOL,
        tag=TAG,
        summary="Embeddings, as tensors",
        answer=answer_document(InferenceAnswer, EXAMPLE, HEADERS),
        raises=(ModelNotFound,),
        parameters=(MODEL_IN_PATH,),
        request_body=REQUEST_BODY,
    ),
    _of_model(
        "/v2/models/{model:path}/ready",
        answer_model_ready,
        summary="May requests to it come?",
        answer=answer_document(ModelReady),
    ),
    _of_model(
        "/v2/models/{model:path}",
        answer_model,
        summary="The model's tensors",
        answer=answer_document(ModelMetadata),
    ),
)
