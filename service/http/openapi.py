"""The OpenAPI document, made from the declarations of routes. FastAPI derives schemas; requests never reach it."""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response

from service.errors import NotReady, Overloaded
from service.http.response import JSON
from service.http.route import Route
from service.machine import own_version

_REQUEST_ID = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "is returned in the answer and logged; replaced unless it is up to 128 letters, digits and ._:/+=@-",
    "schema": {"type": "string"},
}
_REQUEST_TIMEOUT = {
    "name": "X-Request-Timeout",
    "in": "header",
    "description": "seconds after which the answer is worth nothing; queued work is dropped then, answer 504",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}

DESCRIPTION = """\
Text in, a sentence embedding out and, when asked for, the attention weights of every head that made it.

Every failure on every route has one body, `{"error": {"message", "type", "param", "code"}}`; besides those listed with
a route: 404 for no such route, 405 for a wrong method, and, before a request reaches a route, 400 for what is no HTTP,
408 for a request that arrives too slowly, 431 for headers that are too large and 503 for a connection too many. Routes
of other APIs, tagged with their names, fail in those APIs' shapes, with the same statuses."""


def make_document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document, with the nulls in its examples that FastAPI drops on the way."""
    document = get_openapi(
        title="Polyhead",
        version=own_version(),
        description=DESCRIPTION,
        routes=[_described(route) for route in routes if route.summary],
    )
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{}, {"key": []}]  # a key is needed where the process was given keys
    for operations in document["paths"].values():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():  # of a schema written by hand
                document["components"]["schemas"].update(content["schema"].pop("$defs", {}))
            for response in operation["responses"].values():
                for example in response.get("content", {}).get(JSON, {}).get("examples", {}).values():
                    if isinstance(error := example["value"].get("error"), dict):  # other APIs' errors are a text
                        error.setdefault("param", None)
    return document


def _described(route: Route) -> APIRoute:
    """The route as FastAPI describes one."""
    headers = (_REQUEST_ID, _REQUEST_TIMEOUT) if route.has_body else ()
    extra: dict[str, Any] = {"parameters": [*route.parameters, *headers], "requestBody": route.request_body}
    return APIRoute(
        route.path,
        route.endpoint,
        methods=[route.method],
        summary=route.summary,
        tags=[route.tag] if route.tag else None,
        response_model=None,
        response_class=JSONResponse if JSON in route.content_types else Response,
        responses={200: dict(route.answer), **_failure_documents(route)},
        openapi_extra={name: value for name, value in extra.items() if value},
    )


def _failure_documents(route: Route) -> dict[int | str, dict[str, Any]]:
    """The document's entries of a route's failures, by status, with an example of each code."""
    documents: dict[int | str, dict[str, Any]] = {}
    shape = route.error_shape
    model = reduce(or_, (other.model for other in route.body_error_shapes.values()), shape.model)
    for error in route.failures:
        summary = (error.__doc__ or error.code).strip().splitlines()[0]  # `python -OO` keeps no docstrings
        entry = documents.setdefault(
            error.status, {"description": "", "model": model, "content": {JSON: {"examples": {}}}}
        )
        if issubclass(error, Overloaded | NotReady):
            seconds = {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}
            entry["headers"] = {"Retry-After": seconds}
        entry["description"] = f"{entry['description']} {summary}".strip()
        examples = entry["content"][JSON]["examples"]
        examples[error.code] = {"summary": summary, "value": shape.body(error(summary))}
    return documents
