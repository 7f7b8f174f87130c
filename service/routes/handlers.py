"""From a declared endpoint to what answers a request: the body is read within its limits and validated."""

from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.http.body import check_accept, check_media, read_body, validate
from service.http.body_structure import check_structure
from service.http.route import Handler, Route
from service.services import Services


def make_handler(route: Route, services: Services) -> Handler:
    """The endpoint itself, or, where it takes a validated body, one that reads that first."""
    model = route.body_model
    if model is None:
        return route.endpoint
    content_types, settings = route.content_types, services.settings

    async def handle(request: Request) -> Response:
        services.readiness.runner()  # not ready: say so before the body is read
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
            return await route.endpoint(request, validate(model, raw))

    return handle
