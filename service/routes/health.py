"""`GET /healthz` and `GET /readyz`, for whoever restarts the process and whoever sends it traffic."""

from starlette.requests import Request
from starlette.responses import Response

from service.errors import NotReady
from service.http.media import JSON
from service.http.route import Route, answer_document
from service.requests.schemas import Status
from service.services import services_of


async def answer_healthz(request: Request) -> Response:
    """200 while the process lives and its workers answer, also while it loads or drains; else restart it."""
    services_of(request).readiness.check_alive()
    return Response(b'{"status":"ok"}', media_type=JSON)


async def answer_readyz(request: Request) -> Response:
    """200 while requests should come; 503 while it loads or drains. A full queue is answered 429, and is ready."""
    services_of(request).readiness.check_ready()
    return Response(b'{"status":"ready"}', media_type=JSON)


ROUTES = (
    Route(
        "GET",
        "/healthz",
        answer_healthz,
        access="everyone",
        is_probe=True,
        summary="Does the process live?",
        answer=answer_document(Status, {"status": "ok"}),
        raises=(NotReady,),
    ),
    Route(
        "GET",
        "/readyz",
        answer_readyz,
        access="everyone",
        is_probe=True,
        summary="May traffic come?",
        answer=answer_document(Status, {"status": "ready"}),
        raises=(NotReady,),
    ),
)
