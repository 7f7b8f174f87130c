"""Every route of the service; an API is added by a line here."""

from typing import NoReturn

from starlette.requests import Request
from starlette.responses import Response

from service.context import RequestContext, context_of
from service.errors import NotFound
from service.http.body import check_accept, check_media, check_structure, read_body, validate
from service.http.connection import expected_tokens
from service.http.route import Handler, Route
from service.routes import admin, encode, pages, predict, score, similarity, status, zero_shot
from service.routes.compatible import cohere, inference_protocol, jina, openai, tei
from service.services import Services, choose_model, services_of

ROUTES: tuple[Route, ...] = (
    *encode.ROUTES,
    *similarity.ROUTES,
    *score.ROUTES,
    *predict.ROUTES,
    *zero_shot.ROUTES,
    *status.ROUTES,
    *pages.ROUTES,
    *admin.ROUTES,
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
"""Instead of a route where the table has none. The path is its name in log and metrics, which never hold a raw one."""


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
        with services.body_budget.share() as share:
            raw = await read_body(request.receive, context.headers, settings.max_body_bytes, share)
            if route.body_error_shapes:
                context.error_shape = route.error_shape_of(raw)
                check_accept(context.headers, content_types)
            await check_structure(raw, max_texts=settings.max_texts, max_tokens=settings.max_request_tokens)
            body = validate(model, raw)
            if not chooses:
                return await route.endpoint(request, body)
            chosen = choose_model(request, getattr(body, "model", None))
            if not chosen.models.are_several:
                return await route.endpoint(request, body)
            if route.is_queued:
                _refuse_early(chosen, context)
            with chosen.model.bodies.share() as part:  # so that the bodies of one model leave room for the others'
                part.take(share.held)
                return await route.endpoint(request, body)

    return handle


def _refuse_early(services: Services, context: RequestContext) -> None:
    """Refuses what the chosen model's queue would not take; before it was chosen, all queues had to be full for that.

    Raises:
        Overloaded: it would have to wait too long.
    """
    if refusal := services.runner().early_refusal(expected_tokens(context.headers)):
        try:
            raise refusal
        finally:
            del refusal  # it holds this frame: no cycle is left for a collection of garbage
