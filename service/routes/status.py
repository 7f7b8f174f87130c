"""What is asked about the process: probes, `GET /info` and `GET /heads`, `GET /metrics`, `GET /openapi.json`.

`POST /admin/models` and `DELETE /admin/models/{model}`: models come and go while others answer. They are on the admin
port, for whoever has a key where there are keys, and only with `--model-store`: they load only what that directory
lists, which may be a link that its owner put there. A model that leaves answers the requests that it has.
"""

import asyncio
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.errors import Invalid, ModelNotFound, NotFound, NotReady
from service.http.response import JSON
from service.http.route import Route, answer_document
from service.machine import installed_versions
from service.services import Services, choose_model, services_of
from service.wire import AnswerModel, RequestModel


class Status(AnswerModel):
    """What a probe answers if all is well."""

    status: Literal["ok", "ready"]


class Info(AnswerModel, extra="allow"):
    """What `GET /info` answers."""

    model: str
    model_id: str
    """the same as TEI names it"""
    max_client_batch_size: int
    """texts that one request takes however long they are, as TEI names it: its clients send no more"""
    manifest: dict[str, Any]
    """the artifact's `manifest.json`"""
    limits: dict[str, float]
    """largest request, in bytes, texts, tokens and seconds"""
    runtime: dict[str, str | int | bool | list[str]]
    """provider, workers, threads, engine, its arithmetic, the processor's instructions, and `batch_invariant`: whether
    a vector has the same bits whatever else is in its batch"""
    versions: dict[str, str]


class HeadReport(AnswerModel, extra="allow"):
    """What `GET /heads` answers: the artifact's `heads.json`."""


async def answer_healthz(request: Request) -> Response:
    """200 while the process lives and its workers answer, also while it loads or drains; else restart it."""
    services_of(request).readiness.check_alive()
    return Response(b'{"status":"ok"}', media_type=JSON)


async def answer_readyz(request: Request) -> Response:
    """200 while requests should come; 503 while it loads or drains. A full queue is answered 429, and is ready."""
    services_of(request).readiness.check_ready()
    return Response(b'{"status":"ready"}', media_type=JSON)


_LIMITS = (
    *("max_body_bytes", "max_texts", "max_text_characters", "max_request_tokens", "max_queue_tokens"),
    *("max_embedding_bytes", "max_attention_bytes", "max_attention_work_bytes", "max_explained_tokens"),
    "request_timeout",
)


async def answer_info(request: Request) -> Response:
    """The artifact's manifest, this process' limits and threads, and the versions it runs on."""
    services = choose_model(request, request.query_params.get("model"))
    runner, settings = services.runner(), services.settings
    longest = runner.tokenizer.max_sequence_length
    described = {
        "model": runner.name,
        "model_id": runner.name,
        "max_client_batch_size": max(1, min(settings.max_texts, settings.max_request_tokens // longest)),
        "manifest": runner.manifest.to_dict(),
        "limits": {
            "max_sequence_length": longest,
            **{name: getattr(settings, name) for name in _LIMITS},
        },
        "runtime": asdict(runner.runtime),
        "versions": installed_versions(),
    }
    return Response(orjson.dumps(described), media_type=JSON)


async def answer_heads(request: Request) -> Response:
    """The report on each head that the export wrote, if any."""
    report = choose_model(request, request.query_params.get("model")).runner().head_report
    if report is None:
        raise NotFound("this artifact has no head report; `polyhead heads ARTIFACT --corpus FILE` writes one")
    return Response(report, media_type=JSON)


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
_of_model = partial(Route, "GET", parameters=(MODEL_IN_QUERY,))
_probe = partial(Route, "GET", is_probe=True, access="everyone", raises=(NotReady,))


_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"  # of a directory in the store: no path leads out of it


class AddModel(RequestModel):
    """What `POST /admin/models` takes."""

    artifact: Annotated[str, Field(pattern=f"^{_NAME}$")]
    """a directory of `--model-store`, named in letters, digits, `.`, `_` and `-`"""
    name: Annotated[str, Field(pattern=f"^{_NAME}$")] | None = None
    """a name of the same characters, which requests choose it by, besides its own name"""


class ModelState(AnswerModel):
    """One of the models."""

    name: str
    ready: bool
    in_use: int
    """requests that it is answering"""
    failure: str
    """why it cannot answer; empty for nothing"""


class ModelStates(AnswerModel):
    """What became of it: every model that is served."""

    models: list[ModelState]


async def answer_add(request: Request, body: AddModel) -> Response:
    """Loads an artifact of the store, while others answer; 422 if it does not load."""
    services = services_of(request)
    directory = _store(services) / body.artifact
    if not directory.is_dir():
        raise NotFound.at("artifact", "the store has no such directory")
    adding = asyncio.ensure_future(services.models.add(directory, body.name or ""))
    failure = await asyncio.shield(adding)  # goes on where the caller leaves
    if failure:
        raise Invalid.at("artifact", failure)
    return _states(services)


async def answer_remove(request: Request) -> Response:
    """Takes a model away, once the requests that it has are answered."""
    services = services_of(request)
    _store(services)
    model = services.models.find(named := request.path_params["model"])
    if model.name != named:  # others may have this one, and would go when the call is tried again
        raise ModelNotFound(f"{named} is served as {model.name}: remove it by that name", param="model")
    if len(services.models) == 1:
        raise Invalid("the last model cannot be removed", param="model")
    removing = asyncio.ensure_future(services.models.remove(model, services.settings.shutdown_timeout))
    await asyncio.shield(removing)
    return _states(services)


async def answer_list(request: Request) -> Response:
    """Every model, those too that cannot answer."""
    return _states(services_of(request))


def _store(services: Services) -> Any:
    if services.settings.model_store is None:
        raise NotFound("no such route: models come and go only with --model-store")
    return services.settings.model_store


def _states(services: Services) -> Response:
    states = [
        {"name": model.name, "ready": model.is_alive(), "in_use": model.in_use, "failure": model.failure}
        for model in services.models
    ]
    return Response(orjson.dumps({"models": states}), media_type=JSON)


STATES = answer_document(ModelStates, {"models": [{"name": "minilm", "ready": True, "in_use": 0, "failure": ""}]})
_operator = partial(Route, access="operator", tag="Operators", answer=STATES, raises=(NotFound, ModelNotFound, Invalid))

ROUTES = (
    _of_model(
        "/info",
        answer_info,
        summary="Model, limits, versions",
        answer=answer_document(Info),
        raises=(ModelNotFound, NotReady),
    ),
    _of_model(
        "/heads",
        answer_heads,
        summary="The head report",
        answer=answer_document(HeadReport),
        raises=(NotFound, ModelNotFound, NotReady),
    ),
    _probe(
        "/healthz", answer_healthz, summary="Does the process live?", answer=answer_document(Status, {"status": "ok"})
    ),
    _probe("/readyz", answer_readyz, summary="May traffic come?", answer=answer_document(Status, {"status": "ready"})),
    Route(
        "GET",
        "/metrics",
        answer_metrics,
        access="admin",
        is_probe=True,
        summary="Metrics for Prometheus",
        answer={"content": {"text/plain": {}, "application/openmetrics-text": {}}},
    ),
    Route("GET", "/openapi.json", answer_openapi, access="admin"),
    _operator("GET", "/admin/models", answer_list, summary="Every model, and whether it answers"),
    _operator("POST", "/admin/models", answer_add, summary="Load another model"),
    _operator(
        "DELETE",
        "/admin/models/{model:path}",
        answer_remove,
        summary="Remove a model",
        parameters=({"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},),
    ),
)
