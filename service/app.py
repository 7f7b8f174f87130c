"""The app: the table of routes, what they share, and the middleware around them, with nothing global."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from service.context import ByteBudget
from service.errors import InternalError, ServiceError
from service.http.access import CrossOriginPolicy, HostAndPortPolicy, KeyRing
from service.http.early_refusal import EarlyRefusals
from service.http.middleware import RequestMiddleware
from service.http.route import Route, RouteTable
from service.models import Models
from service.observability.metrics import Metrics
from service.observability.snapshots import MetricsPages
from service.routes.table import ROUTES, UNMATCHED, make_handler
from service.services import Readiness, Services
from service.settings import Settings, split_list

if TYPE_CHECKING:  # an extra
    from service.observability.tracing import OpenTelemetryTracing

_EXPOSED_HEADERS = ("X-Request-Id", "Retry-After")  # of every answer; routes declare their own


def create_app(
    settings: Settings,
    readiness: Readiness,
    tracing: "OpenTelemetryTracing | None" = None,
    routes: Sequence[Route] = ROUTES,
) -> tuple[ASGIApp, Services]:
    """The whole HTTP side, not ready until `readiness` and a model are; without `tracing` nothing is traced."""
    table = RouteTable(routes, UNMATCHED)
    keys = KeyRing(split_list(settings.api_keys.get_secret_value()), settings.api_keys_file)
    metrics = Metrics(_expected_outcomes(table), _refusal_codes())
    metrics.watch_readiness(readiness.is_ready)
    bodies = ByteBudget(settings.max_held_body_bytes, "request bodies")
    models = readiness.models = Models(settings, metrics)
    ports = HostAndPortPolicy(settings.admin_port, split_list(settings.allowed_hosts))
    origins = _origins(split_list(settings.cors_origins), table)
    early = EarlyRefusals(table, readiness, keys, ports, metrics, is_read_by_browsers=origins is not None)
    pages = MetricsPages(metrics.registry)
    services = Services(settings, readiness, metrics, pages, table, bodies, early, models, next(iter(models)))
    middleware = RequestMiddleware(
        table,
        {route: make_handler(route, services) for route in table},
        services=services,
        process=readiness,
        metrics=metrics,
        keys=keys,
        ports=ports,
        early=early,
        origins=origins,
        tracing=tracing,
    )
    return middleware, services


def _origins(origins: Sequence[str], table: RouteTable) -> CrossOriginPolicy | None:
    """Without any origin browsers keep all pages but our own out (the default)."""
    return CrossOriginPolicy(origins, table.methods, (*_EXPOSED_HEADERS, *table.answer_headers)) if origins else None


def _expected_outcomes(table: RouteTable) -> Iterator[tuple[str, str, int]]:
    """The outcomes whose series objectives divide: successes of every route, and server errors of those that work.

    Others have no series before they come. Refusals are counted by their reason too, from the start.
    """
    for route in table:
        yield route.path, route.method, 200
        if route.method == "POST":
            yield from ((route.path, route.method, status) for status in _server_errors(route))


def _server_errors(route: Route) -> list[int]:
    return sorted({error.status for error in route.failures if error.status >= 500})


def _refusal_codes() -> list[str]:
    """Codes of all errors that refuse a request, from the exception tree."""
    found, classes = [], [ServiceError]
    while classes:
        error = classes.pop()
        classes += error.__subclasses__()
        if error is not ServiceError and not issubclass(error, InternalError):
            found.append(error.code)
    return sorted(found)
