"""One look-up from method and path to a route."""

import asyncio
from collections.abc import Mapping

import pytest
from starlette.requests import Request
from starlette.responses import Response

from service.errors import MethodNotAllowed
from service.http.route import Method, Route, RouteTable


async def answer(request: Request) -> Response:
    return Response()


def route(method: Method, path: str) -> Route:
    return Route(method, path, answer)


UNMATCHED = route("GET", "unmatched")
PAGE, FORM = route("GET", "/"), route("POST", "/")
NARROW, WIDE = route("POST", "/models/{model:path}/run"), route("GET", "/models/{model:path}")
TABLE = RouteTable((PAGE, FORM, NARROW, WIDE), UNMATCHED)


@pytest.mark.parametrize(
    ("method", "path", "found", "parameters"),
    [
        ("GET", "/", PAGE, {}),
        ("HEAD", "/", PAGE, {}),
        ("POST", "/", FORM, {}),
        ("GET", "/models/a/b", WIDE, {"model": "a/b"}),
        ("POST", "/models/a/b/run", NARROW, {"model": "a/b"}),
        ("GET", "/nothing", UNMATCHED, {}),
        ("GET", "/models", UNMATCHED, {}),
        ("GET", "//", UNMATCHED, {}),
        ("GET", "unmatched", UNMATCHED, {}),
    ],
)
def test_route_of(method: str, path: str, found: Route, parameters: Mapping[str, str]) -> None:
    assert TABLE.find(method, path) == (found, parameters)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/", ["GET", "HEAD", "POST"]),
        ("POST", "/models/a", ["GET", "HEAD"]),
        ("GET", "/models/a/run", ["POST"]),  # not a model whose name ends so
        ("HEAD", "/models/a/run", ["POST"]),
    ],
)
def test_a_wrong_method_finds_the_path_and_what_it_allows(method: str, path: str, allowed: list[str]) -> None:
    found, _ = TABLE.find(method, path)
    assert found.path in {"/", "/models/{model:path}", "/models/{model:path}/run"}
    with pytest.raises(MethodNotAllowed) as refused:
        asyncio.run(found.endpoint(Request({"type": "http"})))
    assert refused.value.allowed == allowed
