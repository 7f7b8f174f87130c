"""The way past the framework's layers, for routes that need none of them.

Between the gate and a route FastAPI and Starlette put nine calls: exit stacks, telemetry, their own error handling and
body limit, the router. They are a tenth of what a short text costs beside the model. A path without parameters is
looked up in a table instead; everything else, unknown paths and wrong methods included, takes the long way.
"""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from service.context import context_of
from service.errors import ServiceError
from service.http.body import DirectRoute, Handler
from service.http.failures import logged_failure_response


class Shortcut:
    """Wraps the app, all of whose routes are there already."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._handlers: dict[tuple[str, str], Handler] = {
            (method, route.path): route.handler
            for route in app.routes
            if isinstance(route, DirectRoute) and "{" not in route.path
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; raises what the route raises, but for service errors."""
        handler = self._handlers.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if handler is None:
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app
        try:
            response = await handler(Request(scope, receive))
        except ServiceError as error:
            response = logged_failure_response(error, context_of(scope))
        await response(scope, receive, send)
