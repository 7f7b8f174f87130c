"""Shared by the adapters of other APIs: they run our encode path, and report truncation in a header."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from model.tasks.settings import Task
from service.answers.serialize import serialize_in_pieces
from service.context import context_of
from service.errors import ModelNotFound, WrongTask
from service.http.media import JSON
from service.http.pieces import respond
from service.http.route import answer_document
from service.operations.encode import EncodeResult, run, timed
from service.requests.schemas import EncodeRequest
from service.services import services_of
from service.tokenization.inputs import INPUTS, InputNames

TRUNCATED = "X-Truncated-Inputs"
"""How many inputs were longer than the model takes and had their end cut off; only where some were."""


def embeddings_document(model: Any, example: Any) -> dict[str, Any]:
    """The OpenAPI entry of an adapter's good answer."""
    schema = {"type": "integer", "minimum": 1}
    return answer_document(model, example, {TRUNCATED: {"description": "how many inputs were cut", "schema": schema}})


async def run_for(request: Request, wanted: EncodeRequest, *, names: InputNames = INPUTS) -> EncodeResult:
    """Encodes for an HTTP request; `names` are those of `inputs` in the API that it speaks."""
    return await run(services_of(request), context_of(request.scope), wanted, names=names)


async def json_response(request: Request, answer: Any, encoded: EncodeResult) -> Response:
    """An answer made from `encoded`, arrays still arrays, as JSON."""
    with timed(services_of(request).metrics, "serialize"):
        pieces = await serialize_in_pieces(answer, floats=encoded.sizes.built_from)
    return respond(pieces, JSON, truncation_header(request))


def require_task(request: Request, *tasks: Task) -> None:
    """Refuses what only models of other tasks answer.

    Raises:
        NotReady: the model is not loaded yet.
        WrongTask: naming the task of the model that is served.
    """
    manifest = services_of(request).readiness.runner().manifest
    if manifest.task not in tasks:
        raise WrongTask(
            f"{manifest.model} is served here for {manifest.task.replace('_', '-')}: this route is for "
            f"{' or '.join(task.replace('_', '-') for task in tasks)}"
        )


def truncation_header(request: Request) -> dict[str, str]:
    """Reports truncated inputs, for which the other APIs' answers have no field."""
    cut = context_of(request.scope).truncated
    return {TRUNCATED: str(cut)} if cut else {}


def check_model(request: Request, *, version: str | None = None) -> str:
    """The name of the model that is served; checks that the path names the same one.

    Args:
        request: whose path holds it, as `model`.
        version: may follow the name, as `/versions/{version}`.

    Raises:
        ModelNotFound: the path names another one.
    """
    served = services_of(request).readiness.runner().manifest.model
    names = [served] if version is None else [served, f"{served}/versions/{version}"]
    if request.path_params["model"] not in names:
        raise ModelNotFound(f"no such model; {served} is served here", param="model")
    return served
