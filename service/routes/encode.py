"""`POST /encode`."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.encoding import encode
from service.exchange import exchange_of
from service.failures import INFERENCE_FAILURES, failure_documents
from service.openapi import QUEUED_REQUEST, answer_document
from service.schemas import EncodeAnswer, EncodeRequest
from service.services import services_of

EXAMPLE = {
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "embeddings": [[0.0312, -0.0519, 0.0447]],
    "usage": {"tokens": 7},
    "items": [{"tokens": 7, "truncated": False}],
}


def add_routes(app: FastAPI) -> None:
    """Adds the route."""
    app.add_api_route(
        "/encode",
        answer_encode,
        methods=["POST"],
        summary="Encode texts",
        response_model=None,
        responses={**answer_document(EncodeAnswer, EXAMPLE), **failure_documents(*INFERENCE_FAILURES)},
        openapi_extra=QUEUED_REQUEST,
    )


async def answer_encode(request: Request, body: EncodeRequest) -> Response:
    """One embedding an input, in their order; attention weights where they are asked for."""
    answer = await encode(services_of(request), exchange_of(request.scope), body)
    return Response(answer, media_type="application/json")
