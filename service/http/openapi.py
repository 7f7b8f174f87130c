"""What the OpenAPI document says beyond what FastAPI derives from the routes."""

from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.http.media import JSON

_REQUEST_ID = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "comes back in the answer and stands in the log; another takes its place "
    "unless it is up to 128 letters, digits and ._:/+=@-",
    "schema": {"type": "string"},
}
_REQUEST_TIMEOUT = {
    "name": "X-Request-Timeout",
    "in": "header",
    "description": "seconds after which the answer is worth nothing; queued work is dropped then, answer 504",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}
QUEUED_REQUEST: dict[str, Any] = {"parameters": [_REQUEST_ID, _REQUEST_TIMEOUT]}

DESCRIPTION = """\
Text in, a sentence embedding out and, when asked for, the attention weights of every head that made it.

Every failure on every route has one body, `{"error": {"message", "type", "param", "code"}}`; besides those listed with
a route: 404 for no such route, 405 for a wrong method, and, before a request reaches a route, 400 for what is no HTTP,
408 for a request that arrives too slowly, 431 for headers that are too large and 503 for a connection too many. Routes
of other APIs, tagged with their names, fail in those APIs' shapes, with the same statuses."""


def answer_document(model: Any, example: Any) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entry of a route's good answer."""
    content: dict[str, Any] = {"example": example} if example is not None else {}
    return {200: {"description": "OK", "model": model, "content": {JSON: content}}}


def add_openapi_route(app: FastAPI) -> None:
    """Adds `GET /openapi.json`, made once, when it is first asked for."""
    written: list[bytes] = []

    async def answer_openapi(_request: Request) -> Response:
        if not written:
            written.append(orjson.dumps(make_document(app)))
        return Response(written[0], media_type=JSON)

    app.add_api_route("/openapi.json", answer_openapi, methods=["GET"], response_model=None, include_in_schema=False)


def make_document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the nulls in its examples that FastAPI drops on the way."""
    document = app.openapi()
    _hoist_definitions(document)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{}, {"key": []}]  # a key is needed where the process was given keys
    for operations in document["paths"].values():
        for operation in operations.values():
            for response in operation["responses"].values():
                for example in response.get("content", {}).get(JSON, {}).get("examples", {}).values():
                    if isinstance(error := example["value"]["error"], dict):  # other APIs' errors are a text
                        error.setdefault("param", None)
    return document


def _hoist_definitions(document: dict[str, Any]) -> None:
    """Moves what a schema written by hand defines inside itself to where its references look for it."""
    for operations in document["paths"].values():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                document["components"]["schemas"].update(content["schema"].pop("$defs", {}))
