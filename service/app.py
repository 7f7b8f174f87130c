"""The app: every route of the service, what they share, and the middleware around them, with nothing global."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from service.context import ByteBudget, Share, context_of
from service.errors import InternalError, NotFound, ServiceError
from service.http.access import CrossOriginPolicy, HostAndPortPolicy, KeyRing
from service.http.body import check_accept, check_media, check_structure, read_body
from service.http.early_refusal import EarlyRefusals
from service.http.middleware import RequestMiddleware
from service.http.route import Handler, Route, RouteTable
from service.models import Models
from service.observability.metrics import Metrics
from service.observability.snapshots import MetricsPages
from service.routes import encode, pages, predict, score, similarity, status
from service.routes.compatible import cohere, inference_protocol, jina, openai, tei
from service.services import Readiness, Services, choose_model, refuse_early, services_of
from service.settings import Settings, split_list
from service.wire import validate

if TYPE_CHECKING:  # an extra
    from service.observability.tracing import OpenTelemetryTracing

ROUTES: tuple[Route, ...] = (
    *encode.ROUTES,
    *similarity.ROUTES,
    *score.ROUTES,
    *predict.ROUTES,
    *status.ROUTES,
    *pages.ROUTES,
    *openai.ROUTES,
    *tei.ROUTES,
    *cohere.ROUTES,
    *jina.ROUTES,
    *inference_protocol.ROUTES,
)


async def refuse_unmatched(request: Request) -> NoReturn:
    """Answers a path that no route has."""
    has_list = services_of(request).settings.admin_port is None  # else it is on that port, which may be hidden
    raise NotFound("no such route; GET /openapi.json lists them" if has_list else "no such route")


UNMATCHED = Route("GET", "unmatched", refuse_unmatched)
"""Its path is the name of such requests in log and metrics, which never hold a raw one."""


def make_handler(route: Route, services: Services) -> Handler:
    """The endpoint itself; for a validated body, one that reads that first."""
    model = route.body_model
    if model is None:
        return route.endpoint
    content_types, settings = route.content_types, services.settings
    chooses = "model" in model.model_fields or hasattr(model, "model")

    async def handle(request: Request) -> Response:
        services.models.check_loaded()  # not ready: say so before the body is read
        context = context_of(request.scope)
        check_media(context.headers)
        if not route.body_error_shapes:  # else a refusal's shape is known with the body
            check_accept(context.headers, content_types)
        with Share(services.body_budget) as share:
            raw = await read_body(request.receive, context.headers, settings.max_body_bytes, share)
            if route.body_error_shapes:
                context.error_shape = route.error_shape_of(raw)
                check_accept(context.headers, content_types)
            await check_structure(raw, max_texts=settings.max_texts, max_tokens=settings.max_request_tokens)
            body = validate(model, raw)
            if not chooses:
                return await route.endpoint(request, body)
            chosen = choose_model(request, getattr(body, "model", None))
            if route.is_queued:
                refuse_early(chosen, context)
            with chosen.model.hold(share.held):
                return await route.endpoint(request, body)

    return handle


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
    metrics.ready.set_function(lambda: float(readiness.is_ready()))
    bodies = ByteBudget(settings.max_held_body_bytes, "request bodies")
    models = readiness.models = Models(settings, metrics)
    metrics.busy_limit.set_function(models.most_busy)
    ports = HostAndPortPolicy(settings.admin_port, split_list(settings.allowed_hosts))
    origins = None  # browsers keep all pages but our own out
    if allowed := split_list(settings.cors_origins):
        exposed = ("X-Request-Id", "Retry-After", *table.answer_headers)  # the first two are of every answer
        origins = CrossOriginPolicy(allowed, table.methods, exposed)
    early = EarlyRefusals(table, models.early_refusal, keys, ports, metrics, is_read_by_browsers=origins is not None)
    pages = MetricsPages(metrics.registry)
    services = Services(settings, readiness, metrics, pages, table, bodies, early, models, next(iter(models)))
    middleware = RequestMiddleware(
        routes=table,
        handlers={route: make_handler(route, services) for route in table},
        services=services,
        is_draining=lambda: readiness.is_draining,
        metrics=metrics,
        keys=keys,
        ports=ports,
        early=early,
        origins=origins,
        tracing=tracing,
    )
    return middleware, services


def _expected_outcomes(table: RouteTable) -> Iterator[tuple[str, str, int]]:
    """The outcomes whose series objectives divide: successes of every route, and server errors of those that work."""
    for route in table:
        yield route.path, route.method, 200
        if route.method == "POST":
            for status in {error.status for error in route.failures if error.status >= 500}:
                yield route.path, route.method, status


def _refusal_codes(kind: type[ServiceError] = ServiceError) -> set[str]:
    """Codes of all errors that refuse a request, from the exception tree."""
    below = {code for error in kind.__subclasses__() if error is not InternalError for code in _refusal_codes(error)}
    return below if kind is ServiceError else {kind.code, *below}
