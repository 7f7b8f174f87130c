"""`POST /encode`."""

from starlette.requests import Request
from starlette.responses import Response

from service.answers.packing import SAFETENSORS_LAYOUT
from service.context import context_of
from service.http.compression import compress
from service.http.media import JSON, SAFETENSORS, prefers_safetensors
from service.http.pieces import respond
from service.http.route import Route, answer_document
from service.operations.encode import encode
from service.requests.schemas import EncodeAnswer, EncodeRequest
from service.services import services_of

EXAMPLE = {
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "embeddings": [[0.0312, -0.0519, 0.0447]],
    "usage": {"tokens": 7},
    "items": [{"tokens": 7, "truncated": False}],
}
HEADERS = {
    "Content-Encoding": {
        "description": "`gzip` for large attention in JSON numbers, where `Accept-Encoding` allows it",
        "schema": {"type": "string"},
    }
}


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


ANSWER = answer_document(EncodeAnswer, EXAMPLE, HEADERS)
ANSWER["content"][SAFETENSORS] = {"schema": {"type": "string", "format": "binary", "description": SAFETENSORS_LAYOUT}}

ROUTES = (Route("POST", "/encode", answer_encode, is_queued=True, summary="Encode texts", answer=ANSWER),)
