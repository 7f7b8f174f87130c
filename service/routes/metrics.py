"""`GET /metrics`."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.errors import InternalError
from service.http.failures import failure_documents
from service.services import services_of


def add_routes(app: FastAPI) -> None:
    """Adds the route."""
    app.add_api_route(
        "/metrics",
        answer_metrics,
        methods=["GET"],
        summary="Metrics for Prometheus",
        response_model=None,
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}},
            **failure_documents(InternalError),
        },
    )


async def answer_metrics(request: Request) -> Response:
    """Prometheus' text format, or OpenMetrics where that is accepted."""
    accept = context_of(request.scope).headers.get(b"accept", b"").decode("latin-1")
    page, content_type = services_of(request).metrics.write(accept)
    return Response(page, headers={"content-type": content_type})
