"""The one layer around the app: request id, security headers, log line, metrics, trace, clients that leave.

One ASGI callable instead of a stack of them: it costs microseconds, and a request is worth a few milliseconds. It does
not read bodies and knows no route beyond its template.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.context import SCOPE_KEY, RequestContext
from service.errors import ClientLeft, InternalError, NotReady, Overloaded, ServiceError
from service.http.connection import CONNECTION_KEY, Connection
from service.http.failures import failure_response
from service.http.headers import SECURITY_HEADERS
from service.http.keys import KeyRing
from service.http.ports import Doors
from service.observability.logs import REQUEST_LOGGER
from service.observability.metrics import CLIENT_CLOSED, Metrics
from service.observability.request_trace import RequestTrace, Tracing, tracing_request
from service.readiness import RETRY_AFTER_SECONDS, Readiness

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
QUEUED_ROUTES = frozenset(
    {
        *("/", "/embed", "/embed_all", "/embeddings", "/encode", "/explain", "/similarity", "/v1/embeddings"),
        "/v2/models/{model:path}/infer",
    }
)
"""POST requests to these wait for workers."""

logger = logging.getLogger(__name__)
request_logger = logging.getLogger(REQUEST_LOGGER)


class Gate:
    """Wraps the app; every request passes here first and last."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        route_of: Callable[[str], str],
        metrics: Metrics,
        readiness: Readiness,
        keys: KeyRing,
        doors: Doors,
        tracing: Tracing | None = None,
    ) -> None:
        self._app = app
        self._route_of = route_of
        self._keys = keys
        self._doors = doors
        self._tracing = tracing
        self._metrics = metrics
        self._readiness = readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; nothing is raised out of here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        context = RequestContext(
            self._route_of(scope["path"]), method if method in METHODS else OTHER, scope["headers"]
        )
        connection: Connection = scope.get(CONNECTION_KEY) or Connection()
        scope[SCOPE_KEY] = context
        if method == "HEAD":  # answered as GET is; the protocol, which keeps the first scope, drops the body
            scope = {**scope, "method": "GET"}
        trace = self._tracing.start(context) if self._tracing is not None else None
        self._metrics.in_flight.inc()
        try:
            with connection.serving(), tracing_request(trace):
                await self._run(context, connection, scope, receive, self._sender(context, connection, send, trace))
        finally:
            self._metrics.in_flight.dec()
            self._finish(context, trace)

    async def _run(
        self, context: RequestContext, connection: Connection, scope: Scope, receive: Receive, send: Send
    ) -> None:
        refusal = connection.failure or self._turned_away(context, scope) or self._early_refusal(context)
        answer = self._app if refusal is None else failure_response(refusal, context)
        failure = await _failure_of(answer(scope, receive, send), context, connection)
        if failure is not None and not context.status and not context.is_abandoned:
            await _failure_of(failure_response(failure, context)(scope, receive, send), context, connection)

    def _turned_away(self, context: RequestContext, scope: Scope) -> ServiceError | None:
        """What keeps a request out whatever it asks: another port's route, another host's name, no key."""
        try:
            self._doors.check(context.route, scope.get("server"), context.headers.get(b"host"))
            self._keys.check(context.method, context.route, context.headers)
        except ServiceError as refusal:
            return refusal
        return None

    def _early_refusal(self, context: RequestContext) -> ServiceError | None:
        """What the queue would answer anyway, before routing, reading and parsing: refusing must cost little."""
        runner = self._readiness.loaded_runner
        if runner is None or context.method != "POST" or context.route not in QUEUED_ROUTES:
            return None
        try:
            runner.refuse_early()
        except Overloaded as refusal:
            return refusal
        return None

    def _sender(self, context: RequestContext, connection: Connection, send: Send, trace: RequestTrace | None) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                if connection.is_lost:  # before this request began: nobody could cancel it
                    raise asyncio.CancelledError
                headers: list[Any] = message.setdefault("headers", [])
                headers.extend(SECURITY_HEADERS)
                headers.append((b"x-request-id", context.request_id.encode("ascii")))
                if trace is not None:
                    headers.extend(trace.headers)
                if self._readiness.is_draining:
                    headers.append((b"connection", b"close"))
                await send(message)  # may wait for an earlier answer to be read, and be cancelled there
                context.status = message["status"]
                return
            await send(message)  # waits for what was sent before to be read: who leaves meanwhile abandons it
            if not message.get("more_body", False):
                connection.running = None  # answered

        return send_with_headers

    def _finish(self, context: RequestContext, trace: RequestTrace | None) -> None:
        context.release()
        if context.is_abandoned:
            context.status = CLIENT_CLOSED
        seconds = time.monotonic() - context.started
        self._metrics.observe_context(context, seconds)
        if trace is not None:
            trace.finish(context)
        if request_logger.isEnabledFor(logging.INFO):
            request_logger.info("request", extra={"fields": _line(context, seconds)})


async def _failure_of(
    answering: Awaitable[None], context: RequestContext, connection: Connection
) -> ServiceError | None:
    """What came in the way of an answer, noting where its client left; None where nothing did."""
    try:
        await answering
    except ClientLeft:
        context.is_abandoned = True
    except asyncio.CancelledError:
        context.is_abandoned = connection.is_lost
        return connection.failure or NotReady(
            "the process ended before this request did", retry_after=RETRY_AFTER_SECONDS
        )
    except Exception:
        logger.exception("unexpected failure", extra={"fields": {"request_id": context.request_id}})
        return InternalError()
    return None


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
