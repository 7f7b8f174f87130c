"""Which pages of other origins may call the API from a browser (CORS), by starlette's rules.

Starlette's middleware would answer preflights before any other check. Here its parts are called from our middleware, so
that a preflight is checked, logged and counted as every request is.
"""

from collections.abc import Sequence
from functools import partial

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.context import RequestContext


class CrossOriginPolicy:
    """Lets pages of some origins call.

    Args:
        origins: as browsers write them, or `*`.
        methods: that pages may use.
        exposed: headers of answers that pages may read.
    """

    def __init__(self, origins: Sequence[str], methods: Sequence[str], exposed: Sequence[str]) -> None:
        self._cors = CORSMiddleware(
            _no_app,
            allow_origins=origins,
            allow_methods=methods,
            allow_headers=("*",),  # clients add headers of their own, and keys stand in headers, not in cookies
            expose_headers=exposed,
        )

    def preflight_response(self, scope: Scope) -> Response:
        """Whether the page may send what it asks for."""
        return self._cors.preflight_response(Headers(scope=scope))

    def sender(self, scope: Scope, send: Send) -> Send:
        """Adds what lets the page read the answer."""
        return partial(self._cors.send, send=send, request_headers=Headers(scope=scope))


def is_preflight(context: RequestContext) -> bool:
    """Whether a browser asks, before it sends a page's request, if it may."""
    headers = context.headers
    return context.method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


async def _no_app(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise NotImplementedError("only the parts of CORSMiddleware are used, it wraps nothing")
