"""`GET /metrics`."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.http.route import Route
from service.services import services_of


async def answer_metrics(request: Request) -> Response:
    """Prometheus' text format, or OpenMetrics where that is accepted; of all processes behind this port."""
    services = services_of(request)
    accept = context_of(request.scope).headers.get(b"accept", b"").decode("latin-1")
    whole = await services.readiness.group.snapshot()
    page, content_type = await asyncio.to_thread(services.metrics.write, accept, whole)
    return Response(page, headers={"content-type": content_type})


ROUTES = (
    Route(
        "GET",
        "/metrics",
        answer_metrics,
        access="admin",
        is_probe=True,
        summary="Metrics for Prometheus",
        answer={"content": {"text/plain": {}, "application/openmetrics-text": {}}},
    ),
)
