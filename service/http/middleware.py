"""The one layer around all routes: request id, checks, security headers, log line, metrics, trace, clients that leave.

It reads no bodies; what it needs to know of a route stands in the route's declaration.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from service.context import SCOPE_KEY, SERVICES_KEY, RequestContext, context_of
from service.errors import ClientLeft, InternalError, NotReady, Overloaded, ServiceError
from service.http.access import CrossOriginPolicy, HostAndPortPolicy, KeyRing, is_preflight
from service.http.connection import CONNECTION_KEY, Connection, expected_tokens
from service.http.early_refusal import EarlyRefusals
from service.http.response import SECURITY_HEADERS, failure_response
from service.http.route import Handler, Route, RouteTable
from service.observability.logs import log_request
from service.observability.metrics import CLIENT_CLOSED, Metrics
from service.observability.stages import current_trace

if TYPE_CHECKING:  # an extra
    from service.observability.tracing import OpenTelemetryTracing, RequestTrace

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestMiddleware:
    """Answers every HTTP request; `handlers` are of the routes in the table, one that refuses is its own.

    `services` are handed on in the scope. Without `origins` no page but our own may call.
    """

    routes: RouteTable
    handlers: Mapping[Route, Handler]
    services: object
    is_draining: Callable[[], bool]
    metrics: Metrics
    keys: KeyRing
    ports: HostAndPortPolicy
    early: EarlyRefusals
    origins: CrossOriginPolicy | None
    tracing: "OpenTelemetryTracing | None"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; nothing is raised out of here."""
        method = scope["method"]
        route, scope["path_params"] = self.routes.find(method, scope["path"])
        context = RequestContext(
            route.path, method if method in METHODS else OTHER, scope["headers"], route.error_shape
        )
        connection: Connection = scope.get(CONNECTION_KEY) or Connection()
        scope[SCOPE_KEY] = context
        scope[SERVICES_KEY] = self.services
        trace = None
        if self.tracing is not None and not route.is_probe:
            trace = self.tracing.start(context)
            current_trace.set(trace)  # each request has a task, and with it a context, of its own
        send = self._sender(context, connection, send, trace)
        if self.origins is not None:
            send = self.origins.sender(scope, send)
        connection.running = asyncio.current_task()
        self.metrics.in_flight.inc()
        try:
            failure = connection.failure or await _failure_of(
                self._answer(route, scope, receive, send), context, connection
            )
            if failure is not None and not context.status and not context.is_abandoned:
                await _failure_of(failure_response(failure, context)(scope, receive, send), context, connection)
        finally:
            self.metrics.in_flight.dec()
            self._finish(route, context, trace)

    async def _answer(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        try:
            self.ports.check(route, scope.get("server"), context.headers.get(b"host"))
            if self.origins is not None and is_preflight(context):  # browsers send it without a key
                response = self.origins.preflight_response(Headers(scope=scope))
            else:
                self._check_caller(route, context)
                response = await self.handlers.get(route, route.endpoint)(Request(scope, receive))
        except ServiceError as error:
            if isinstance(error, InternalError):
                logger.error("request failed", exc_info=error, extra=_fields(context))
            response = failure_response(error, context)
        await response(scope, receive, send)

    def _check_caller(self, route: Route, context: RequestContext) -> None:
        """Refuses who has no key, and what the queue would not take: before the body is read, to cost little."""
        if route.needs_key:
            self.keys.check(context.headers)
        if route.is_queued and (refusal := self.early.refusal_of(expected_tokens(context.headers), 0, 0)):
            self.early.note()
            raise refusal

    def _sender(
        self, context: RequestContext, connection: Connection, send: Send, trace: "RequestTrace | None"
    ) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                if connection.is_lost:  # before this request began: it could not be cancelled then
                    raise asyncio.CancelledError
                headers: list[Any] = message.setdefault("headers", [])
                headers.extend(SECURITY_HEADERS)
                headers.append((b"x-request-id", context.request_id.encode("ascii")))
                if trace is not None:
                    headers.extend(trace.headers)
                if connection.begin_answer() or self.is_draining():
                    headers.append((b"connection", b"close"))
                await send(message)  # may wait for an earlier answer to be read, and be cancelled there
                context.status = message["status"]
                connection.was_refused = context.status == Overloaded.status
                return
            await send(message)  # waits for what was sent before to be read: who leaves meanwhile abandons it
            if not message.get("more_body", False):
                connection.running = None  # answered

        return send_with_headers

    def _finish(self, route: Route, context: RequestContext, trace: "RequestTrace | None") -> None:
        context.end()
        if context.is_abandoned:
            context.status = CLIENT_CLOSED
        seconds = time.monotonic() - context.started
        self.metrics.observe_context(context, seconds, has_answer=route.is_queued)
        if trace is not None:
            trace.finish(context)
        log_request(_line(context, seconds))


async def _failure_of(
    answering: Awaitable[None], context: RequestContext, connection: Connection
) -> ServiceError | None:
    """The failure that prevented an answer, noting whether its client left; None if none did."""
    try:
        await answering
    except ClientLeft:
        context.is_abandoned = True
    except asyncio.CancelledError:
        context.is_abandoned = connection.is_lost
        return connection.failure or NotReady("the process ended before this request did")
    except Exception:
        logger.exception("unexpected failure", extra=_fields(context))
        return InternalError()
    return None


def _fields(context: RequestContext) -> dict[str, Any]:
    return {"fields": {"request_id": context.request_id}}


def _line(context: RequestContext, seconds: float) -> dict[str, Any]:
    line: dict[str, Any] = {
        "request_id": context.request_id,
        "route": context.route,
        "method": context.method,
        "status": context.status,
        "duration_s": round(seconds, 6),
    }
    if context.trace_id is not None:
        line["trace_id"] = context.trace_id
    if context.texts:
        line |= {"texts": context.texts, "tokens": context.tokens, "truncated": context.truncated}
    if context.error_code:
        line["error"] = context.error_code
    return line
