"""What is asked about the process: probes, `GET /info` and `GET /heads`, `GET /metrics`, `GET /openapi.json`."""

import asyncio
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.errors import ModelNotFound, NotFound, NotReady
from service.http.response import JSON
from service.http.route import Route, answer_document
from service.requests.schemas import HeadReport, Info, Status
from service.runner import Runner
from service.services import choose_model, services_of
from service.settings import Settings
from service.versions import installed_versions


async def answer_healthz(request: Request) -> Response:
    """200 while the process lives and its workers answer, also while it loads or drains; else restart it."""
    services_of(request).readiness.check_alive()
    return Response(b'{"status":"ok"}', media_type=JSON)


async def answer_readyz(request: Request) -> Response:
    """200 while requests should come; 503 while it loads or drains. A full queue is answered 429, and is ready."""
    services_of(request).readiness.check_ready()
    return Response(b'{"status":"ready"}', media_type=JSON)


_LIMITS = (
    "max_body_bytes",
    "max_texts",
    "max_text_characters",
    "max_request_tokens",
    "max_queue_tokens",
    "max_embedding_bytes",
    "max_attention_bytes",
    "max_attention_work_bytes",
    "max_explained_tokens",
    "request_timeout",
)


async def answer_info(request: Request) -> Response:
    """The artifact's manifest, this process' limits and threads, and the versions it runs on."""
    services = choose_model(request, request.query_params.get("model"))
    answer = describe_service(services.runner(), services.settings)
    return Response(orjson.dumps(answer), media_type=JSON)


async def answer_heads(request: Request) -> Response:
    """The report on each head that the export wrote, if any."""
    report = choose_model(request, request.query_params.get("model")).runner().head_report
    if report is None:
        raise NotFound("this artifact has no head report; `python -m export heads ARTIFACT --corpus FILE` writes one")
    return Response(report, media_type=JSON)


def describe_service(runner: Runner, settings: Settings) -> dict[str, Any]:
    """What `/info` answers."""
    return {
        "model": runner.manifest.model,
        "manifest": runner.manifest.to_dict(),
        "limits": {
            "max_sequence_length": runner.tokenizer.max_sequence_length,
            **{name: getattr(settings, name) for name in _LIMITS},
        },
        "runtime": asdict(runner.runtime),
        "versions": installed_versions(),
    }


async def answer_metrics(request: Request) -> Response:
    """Prometheus' text format, or OpenMetrics where that is accepted; of all processes behind this port."""
    services = services_of(request)
    accept = context_of(request.scope).headers.get(b"accept", b"").decode("latin-1")
    page, content_type = await services.pages.read(accept, services.readiness.group.snapshot)
    return Response(page, headers={"content-type": content_type})


async def answer_openapi(request: Request) -> Response:
    """The OpenAPI document, made when it is first asked for; without an admin port no operator's route is there."""
    services = services_of(request)
    hidden = {"operator"} if services.settings.admin_port is None else set()
    routes = tuple(route for route in services.routes if route.access not in hidden)
    return Response(await asyncio.to_thread(_written, routes), media_type=JSON)


@lru_cache(maxsize=1)
def _written(routes: tuple[Route, ...]) -> bytes:
    # With FastAPI, a third of what the process would load to start.
    from service.http.openapi import make_document  # noqa: PLC0415

    return orjson.dumps(make_document(routes))


MODEL_IN_QUERY = {
    "name": "model",
    "in": "query",
    "description": "name of one of several models; the default is meant if it is left out",
    "schema": {"type": "string"},
}
_probe = partial(Route, "GET", is_probe=True)

ROUTES = (
    Route(
        "GET",
        "/info",
        answer_info,
        summary="Model, limits, versions",
        answer=answer_document(Info),
        raises=(ModelNotFound, NotReady),
        parameters=(MODEL_IN_QUERY,),
    ),
    Route(
        "GET",
        "/heads",
        answer_heads,
        summary="The head report",
        answer=answer_document(HeadReport),
        raises=(NotFound, NotReady),
        parameters=(MODEL_IN_QUERY,),
    ),
    _probe(
        "/healthz",
        answer_healthz,
        access="everyone",
        summary="Does the process live?",
        answer=answer_document(Status, {"status": "ok"}),
        raises=(NotReady,),
    ),
    _probe(
        "/readyz",
        answer_readyz,
        access="everyone",
        summary="May traffic come?",
        answer=answer_document(Status, {"status": "ready"}),
        raises=(NotReady,),
    ),
    _probe(
        "/metrics",
        answer_metrics,
        access="admin",
        summary="Metrics for Prometheus",
        answer={"content": {"text/plain": {}, "application/openmetrics-text": {}}},
    ),
    Route("GET", "/openapi.json", answer_openapi, access="admin"),
)
