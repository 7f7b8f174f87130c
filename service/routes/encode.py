"""`POST /encode`."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.answers.packing import SAFETENSORS_LAYOUT
from service.context import context_of
from service.http.compression import compress
from service.http.failures import INFERENCE_FAILURES, failure_documents
from service.http.media import JSON, SAFETENSORS, prefers_safetensors
from service.http.openapi import QUEUED_REQUEST, answer_document
from service.http.pieces import respond
from service.operations.encode import encode
from service.requests.schemas import EncodeAnswer, EncodeRequest
from service.services import services_of

EXAMPLE = {
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "embeddings": [[0.0312, -0.0519, 0.0447]],
    "usage": {"tokens": 7},
    "items": [{"tokens": 7, "truncated": False}],
}


def add_routes(app: FastAPI) -> None:
    """Adds the route."""
    answers = answer_document(EncodeAnswer, EXAMPLE)
    answers[200]["content"][SAFETENSORS] = {
        "schema": {"type": "string", "format": "binary", "description": SAFETENSORS_LAYOUT}
    }
    answers[200]["headers"] = {
        "Content-Encoding": {
            "description": "`gzip` for large attention in JSON numbers, where `Accept-Encoding` allows it",
            "schema": {"type": "string"},
        }
    }
    app.add_api_route(
        "/encode",
        answer_encode,
        methods=["POST"],
        summary="Encode texts",
        response_model=None,
        responses={**answers, **failure_documents(*INFERENCE_FAILURES)},
        openapi_extra=QUEUED_REQUEST,
    )


async def answer_encode(request: Request, body: EncodeRequest) -> Response:
    """One embedding an input, in their order; attention weights where they are asked for."""
    context = context_of(request.scope)
    wants_tensors = prefers_safetensors(context.headers.get(b"accept"))
    pieces = await encode(services_of(request), context, body, as_safetensors=wants_tensors)
    if wants_tensors:
        return respond(pieces, SAFETENSORS)
    if body.attention is None or body.encoding_format != "float":
        return respond(pieces, JSON)
    compressed, headers = await compress(pieces, context.headers.get(b"accept-encoding"))
    return respond(compressed, JSON, headers)
