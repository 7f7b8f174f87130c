"""`POST /admin/models` and `DELETE /admin/models/{model}`: models come and go while others answer.

They are on the admin port, for whoever has a key where there are keys, and only with `--model-store`: nothing outside
of that directory is ever loaded. A model that leaves answers the requests that it has.
"""

import asyncio
from functools import partial
from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from service.errors import Invalid, ModelNotFound, NotFound
from service.http.response import JSON
from service.http.route import Route, answer_document
from service.services import Services, services_of
from service.wire import AnswerModel, RequestModel

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"  # of a directory in the store: no path leads out of it


class AddModel(RequestModel):
    """What `POST /admin/models` takes."""

    artifact: Annotated[str, Field(pattern=f"^{NAME}$")]
    """name of a directory in `--model-store`"""
    name: Annotated[str, Field(pattern=f"^{NAME}$")] | None = None
    """what requests choose it by, besides its own name"""


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
    store = _store(services)
    directory = store / body.artifact
    if not directory.is_dir():
        raise NotFound("artifact: the store has no such directory", param="artifact")
    adding = asyncio.ensure_future(services.models.add(directory, body.name or ""))
    failure = await asyncio.shield(adding)  # goes on where the caller leaves
    if failure:
        raise Invalid(f"artifact: {failure}", param="artifact")
    return _states(services)


async def answer_remove(request: Request) -> Response:
    """Takes a model away, once the requests that it has are answered."""
    services = services_of(request)
    _store(services)
    model = services.models.find(request.path_params["model"])
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
