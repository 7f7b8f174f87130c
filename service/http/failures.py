"""Failures as responses: one body on every route, with what the status asks for in headers."""

import logging
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.context import RequestContext, context_of
from service.errors import (
    DeadlineExceeded,
    HeadersTooLarge,
    HeldTooMuch,
    InferenceFailed,
    InternalError,
    Invalid,
    MalformedBody,
    MalformedRequest,
    MethodNotAllowed,
    NotFound,
    NotReady,
    Overloaded,
    RequestTimeout,
    ServiceError,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
)
from service.http.error_shapes import OURS, ErrorShape, error_body
from service.http.headers import retry_after_seconds
from service.http.media import JSON
from service.services import services_of

BODY_FAILURES = (
    MalformedBody,
    MalformedRequest,
    Unauthorized,
    RequestTimeout,
    TooLarge,
    UnsupportedMedia,
    Invalid,
    Overloaded,
    HeldTooMuch,
    InternalError,
    NotReady,
)
INFERENCE_FAILURES = (*BODY_FAILURES, InferenceFailed, DeadlineExceeded)

logger = logging.getLogger(__name__)


def add_failure_handlers(app: FastAPI) -> None:
    """Makes every exception of the app, its router's included, an answer with the one error body."""
    app.add_exception_handler(ServiceError, _answer_service_error)
    app.add_exception_handler(HTTPException, _answer_router_error)
    app.add_exception_handler(Exception, _answer_unknown_error)


def failure_response(error: ServiceError, context: RequestContext) -> Response:
    """The response to a failure; notes its code for log and metrics."""
    context.error_code = error.code
    body = error_body(error, context.method, context.route)
    response = Response(orjson.dumps(body), error.status, media_type=JSON)
    if isinstance(error, RequestTimeout | MalformedRequest | HeadersTooLarge):
        response.headers["connection"] = "close"  # what is left of the request is not waited for
    if isinstance(error, Unauthorized):
        response.headers["www-authenticate"] = "Bearer"
    if isinstance(error, Overloaded | NotReady):
        response.headers["retry-after"] = str(retry_after_seconds(error))
    return response


def logged_failure_response(error: ServiceError, context: RequestContext) -> Response:
    """The response to what a route raised; what is our own fault is logged with its cause."""
    if isinstance(error, InternalError):
        logger.error("request failed", exc_info=error, extra={"fields": {"request_id": context.request_id}})
    return failure_response(error, context)


async def _answer_service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)  # noqa: S101 - registered for this class only
    return logged_failure_response(error, context_of(request.scope))


async def _answer_router_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class only
    context = context_of(request.scope)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(_methods_of(request))
        response = failure_response(MethodNotAllowed(f"this route takes {allowed}"), context)
        response.headers["allow"] = allowed
        return response
    if error.status_code == HTTPStatus.NOT_FOUND:
        has_list = services_of(request).settings.admin_port is None  # else it is on that port, which may be hidden
        hint = "; GET /openapi.json lists them" if has_list else ""
        return failure_response(NotFound(f"no such route{hint}"), context)
    return failure_response(Invalid("the request was not understood"), context)


def _methods_of(request: Request) -> list[str]:
    """What the path takes; the router looks no further than the first of several routes with one template."""
    template = context_of(request.scope).route
    routes = (route for route in request.app.routes if isinstance(route, Route) and route.path == template)
    return sorted({method for route in routes for method in route.methods or ()})


async def _answer_unknown_error(request: Request, _error: Exception) -> Response:
    """The answer only: the error is raised again and logged once, by the gate."""
    return failure_response(InternalError(), context_of(request.scope))


def failure_documents(*errors: type[ServiceError], shape: ErrorShape = OURS) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of a route's failures, by status, with an example of each code."""
    documents: dict[int | str, dict[str, Any]] = {}
    for error in errors:
        summary = (error.__doc__ or error.code).strip().splitlines()[0]  # `python -OO` keeps no docstrings
        entry = documents.setdefault(error.status, _document(error, shape))
        entry["description"] = f"{entry['description']} {summary}".strip()
        examples = entry["content"][JSON]["examples"]
        examples[error.code] = {"summary": summary, "value": shape.body(error(summary))}
    return documents


def _document(error: type[ServiceError], shape: ErrorShape) -> dict[str, Any]:
    document = {"description": "", "model": shape.model, "content": {JSON: {"examples": {}}}}
    if issubclass(error, Overloaded | NotReady):
        document["headers"] = {"Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}}
    return document
