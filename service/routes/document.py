"""`GET /openapi.json`."""

import asyncio
from functools import lru_cache

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.http.media import JSON
from service.http.route import Route
from service.http.route_table import RouteTable
from service.services import services_of


async def answer_document(request: Request) -> Response:
    """The OpenAPI document, made when it is first asked for."""
    return Response(await asyncio.to_thread(_written, services_of(request).routes), media_type=JSON)


@lru_cache(maxsize=1)
def _written(routes: RouteTable) -> bytes:
    # With FastAPI, a third of what the process would load to start.
    from service.http.openapi import make_document  # noqa: PLC0415

    return orjson.dumps(make_document(routes))


ROUTES = (Route("GET", "/openapi.json", answer_document, access="admin"),)
