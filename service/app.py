"""The app: routes, failures and the gate around them, with nothing global.

FastAPI routes and describes; it neither reads bodies nor sends telemetry here.
"""

from collections.abc import Iterator, Sequence

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.telemetry import TelemetryConfig
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from service.byte_budget import ByteBudget
from service.errors import InternalError, NotFound, ServiceError, Unauthorized
from service.http.body import DirectRoute
from service.http.failures import add_failure_handlers
from service.http.keys import KeyRing
from service.http.middleware import Gate
from service.http.openapi import DESCRIPTION, add_openapi_route
from service.http.ports import Doors
from service.http.shortcut import Shortcut
from service.observability.metrics import CLIENT_CLOSED, Metrics
from service.observability.request_trace import Tracing
from service.readiness import Readiness
from service.routes import encode, explain, health, info, metrics, pages, similarity, tokenize
from service.routes.compatible import inference_protocol, infinity, openai, tei
from service.services import Services
from service.settings import Settings, split_list
from service.versions import own_version

# FastAPI 0.165 instruments itself by default and, told so by an environment variable, sends request data to a
# collector. Off, whatever the environment says: the service has its own metrics, and texts stay here.
TELEMETRY_OFF: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
UNMATCHED = "unmatched"


def create_app(settings: Settings, readiness: Readiness, tracing: Tracing | None = None) -> tuple[ASGIApp, Services]:
    """The whole HTTP side, not ready until `readiness` has an engine; without `tracing` nothing is traced."""
    app = FastAPI(
        title="Polyhead",
        version=own_version(),
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=TELEMETRY_OFF,
    )
    app.router.route_class = DirectRoute
    for routes in (
        encode,
        explain,
        tokenize,
        similarity,
        info,
        health,
        metrics,
        pages,
        openai,
        infinity,
        tei,
        inference_protocol,
    ):
        routes.add_routes(app)
    add_openapi_route(app)
    add_failure_handlers(app)
    keys = KeyRing(split_list(settings.api_keys.get_secret_value()), settings.api_keys_file)
    metrics_of_app = Metrics(_expected_outcomes(app, has_keys=keys.is_needed), _refusal_codes())
    bodies = ByteBudget(settings.max_held_body_bytes, "request bodies")
    answers = ByteBudget(settings.max_held_answer_bytes, "answers")
    services = Services(settings, readiness, metrics_of_app, bodies, answers)
    services.metrics.watch_readiness(readiness.is_ready)
    app.state.services = services
    gate = Gate(
        Shortcut(app),
        route_of=RouteNames(app),
        metrics=services.metrics,
        readiness=readiness,
        keys=keys,
        doors=Doors(settings.admin_port, split_list(settings.allowed_hosts)),
        tracing=tracing,
    )
    return _open_to_origins(gate, split_list(settings.cors_origins)), services


def _open_to_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Lets pages of these origins call the API; without any, browsers keep them out (the default)."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),  # clients add headers of their own, and keys stand in headers, not in cookies
        expose_headers=("X-Request-Id", "Retry-After", "X-Truncated-Inputs", "Inference-Header-Content-Length"),
    )


class RouteNames:
    """The template of each path, from a closed set: log and metrics never hold a raw path."""

    def __init__(self, app: FastAPI) -> None:
        paths = [route.path for route in app.routes if isinstance(route, APIRoute)]
        self._exact = {path: path for path in paths if "{" not in path}
        self._patterns = [(path.partition("{")[0], path.rpartition("}")[2], path) for path in paths if "{" in path]

    def __call__(self, path: str) -> str:
        """The template, or `unmatched`."""
        if (exact := self._exact.get(path)) is not None:
            return exact
        for start, end, template in self._patterns:
            if path.startswith(start) and path.endswith(end) and len(path) >= len(start) + len(end):
                return template
        return UNMATCHED


def _expected_outcomes(app: FastAPI, *, has_keys: bool) -> Iterator[tuple[str, str, int]]:
    """Every (route, method, status) that the document knows, and those of requests that match no route.

    A wrong method has no series before it comes: there would be more of them than of all others. 401 needs keys.
    """
    statuses = {(UNMATCHED, method): [NotFound.status, Unauthorized.status] for method in ("GET", "POST")}
    for route in app.routes:
        if isinstance(route, APIRoute):
            for method in route.methods or ():
                statuses[route.path, method] = [*map(int, route.responses or (200,)), CLIENT_CLOSED]
    for (path, method), known in statuses.items():
        yield from ((path, method, status) for status in known if has_keys or status != Unauthorized.status)


def _refusal_codes() -> list[str]:
    """Codes of all errors that refuse a request, from the exception tree."""
    found, classes = [], [ServiceError]
    while classes:
        error = classes.pop()
        classes += error.__subclasses__()
        if error is not ServiceError and not issubclass(error, InternalError):
            found.append(error.code)
    return sorted(found)
