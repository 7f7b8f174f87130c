"""Failures as responses: a body in the route's error shape, and the headers that the status asks for."""

import orjson
from starlette.responses import Response

from service.context import RequestContext
from service.errors import (
    HeadersTooLarge,
    MalformedRequest,
    MethodNotAllowed,
    NotReady,
    Overloaded,
    RequestTimeout,
    ServiceError,
    Unauthorized,
)
from service.http.headers import retry_after_seconds
from service.http.media import JSON


def failure_response(error: ServiceError, context: RequestContext) -> Response:
    """The response to a failure; notes its code for log and metrics."""
    context.error_code = error.code
    body = orjson.dumps(context.error_shape.body(error))
    return Response(body, error.status, headers=_headers(error), media_type=JSON)


def _headers(error: ServiceError) -> dict[str, str]:
    match error:
        case RequestTimeout() | MalformedRequest() | HeadersTooLarge():
            return {"connection": "close"}  # what is left of the request is not waited for
        case Unauthorized():
            return {"www-authenticate": "Bearer"}
        case Overloaded() | NotReady():
            return {"retry-after": str(retry_after_seconds(error))}
        case MethodNotAllowed():
            return {"allow": ", ".join(error.allowed)}
    return {}
