"""`GET /healthz` and `GET /readyz`, for whoever restarts the process and whoever sends it traffic."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.errors import InternalError, NotReady
from service.http.failures import failure_documents
from service.http.media import JSON
from service.http.openapi import answer_document
from service.requests.schemas import Status
from service.services import services_of


def add_routes(app: FastAPI) -> None:
    """Adds the routes."""
    app.add_api_route(
        "/healthz",
        answer_healthz,
        methods=["GET"],
        summary="Does the process live?",
        response_model=None,
        responses={**answer_document(Status, {"status": "ok"}), **failure_documents(NotReady, InternalError)},
    )
    app.add_api_route(
        "/readyz",
        answer_readyz,
        methods=["GET"],
        summary="May traffic come?",
        response_model=None,
        responses={**answer_document(Status, {"status": "ready"}), **failure_documents(NotReady, InternalError)},
    )


async def answer_healthz(request: Request) -> Response:
    """200 while the process lives and its workers answer, also while it loads or drains; else restart it."""
    services_of(request).readiness.check_alive()
    return Response(b'{"status":"ok"}', media_type=JSON)


async def answer_readyz(request: Request) -> Response:
    """200 while requests should come; 503 while it loads or drains. A full queue is no reason: that is 429's."""
    services_of(request).readiness.check_ready()
    return Response(b'{"status":"ready"}', media_type=JSON)
