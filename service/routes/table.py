"""Every route of the service; an API is added by a line here."""

from typing import NoReturn

from starlette.requests import Request

from service.errors import NotFound
from service.http.route import Route
from service.routes import (
    document,
    encode,
    explain,
    health,
    info,
    metrics,
    pages,
    predict,
    rerank,
    score,
    similarity,
    tokenize,
)
from service.routes.compatible import cohere, inference_protocol, infinity, openai, tei, tei_host
from service.services import services_of

ROUTES: tuple[Route, ...] = (
    *encode.ROUTES,
    *explain.ROUTES,
    *tokenize.ROUTES,
    *similarity.ROUTES,
    *rerank.ROUTES,
    *score.ROUTES,
    *predict.ROUTES,
    *info.ROUTES,
    *health.ROUTES,
    *metrics.ROUTES,
    *pages.ROUTES,
    *document.ROUTES,
    *openai.ROUTES,
    *infinity.ROUTES,
    *tei.ROUTES,
    *tei_host.ROUTES,
    *cohere.ROUTES,
    *inference_protocol.ROUTES,
)


async def refuse_unmatched(request: Request) -> NoReturn:
    """Answers a path that no route has."""
    has_list = services_of(request).settings.admin_port is None  # else it is on that port, which may be hidden
    raise NotFound("no such route; GET /openapi.json lists them" if has_list else "no such route")


UNMATCHED = Route("GET", "unmatched", refuse_unmatched)
"""In place of a route where the table has none. The path is its name in log and metrics, which never hold a raw one."""
