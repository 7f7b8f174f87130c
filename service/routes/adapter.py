"""Shared by the adapters of other APIs: they run our encode path, and report truncation in a header."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from model.config_parts import Task
from service.answers.packing import as_base64, serialize_in_pieces
from service.context import context_of
from service.errors import WrongTask
from service.http.response import JSON, compress, respond
from service.http.route import answer_document
from service.observability.stages import StageTimer
from service.operations.encode import EncodeResult, hold_written, run
from service.requests.schemas import EncodeRequest, Output
from service.services import choose_model, services_of
from service.tokenization.inputs import INPUTS, InputNames
from service.wire import Piece

TRUNCATED = "X-Truncated-Inputs"
"""How many inputs were longer than the model or the request takes, and were cut; only where some were."""

CUT_HEADER = {
    TRUNCATED: {"description": "how many inputs were cut", "schema": {"type": "integer", "minimum": 1}},
}
"""The same for the OpenAPI document."""


def model_in_path(description: str) -> dict[str, Any]:
    """The OpenAPI entry of a path's `{model}`."""
    schema = {"type": "string", "minLength": 1}
    return {"name": "model", "in": "path", "required": True, "description": description, "schema": schema}


def embeddings_document(model: Any, example: Any) -> dict[str, Any]:
    """The OpenAPI entry of an adapter's good answer."""
    return answer_document(model, example, CUT_HEADER)


async def run_for(
    request: Request,
    wanted: EncodeRequest,
    *,
    names: InputNames = INPUTS,
    most_tokens: Sequence[int | None] | None = None,
    beside_bytes: int = 0,
) -> EncodeResult:
    """Encodes for an HTTP request, as `service.operations.encode.run` does."""
    services, context = services_of(request), context_of(request.scope)
    return await run(services, context, wanted, names=names, most_tokens=most_tokens, beside_bytes=beside_bytes)


async def json_response(
    request: Request, answer: Any, encoded: EncodeResult, *, has_attention: bool = False
) -> Response:
    """An answer made from `encoded`, arrays still arrays, as JSON; compressed where it holds attention."""
    services, context = services_of(request), context_of(request.scope)
    with StageTimer(services.model.metrics, "serialize"):
        pieces: Sequence[Piece] = await serialize_in_pieces(answer, floats=encoded.sizes.built_from)
    hold_written(services, context, encoded, pieces)
    headers = truncation_header(request)
    if has_attention:
        pieces, coding = await compress(pieces, context.headers.get(b"accept-encoding"))
        headers |= coding
    return respond(pieces, JSON, headers)


def stamped_answer(request: Request, encoded: EncodeResult, kind: str, **entries: Sequence[Any]) -> dict[str, Any]:
    """What OpenAI, Jina, vLLM and Infinity put around an entry an input; arrays still arrays."""
    tokens = encoded.answer["usage"]["tokens"]
    return {
        "id": context_of(request.scope).request_id,
        "object": kind,
        "created": int(time.time()),
        "model": encoded.answer["model"],
        **entries,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def list_vectors(
    request: Request, encoded: EncodeResult, vectors: Iterable[Any], kind: str, encoding_format: str | None
) -> dict[str, Any]:
    """Each input's vector, or vectors, as OpenAI and Jina list them: under the name of its kind."""
    if encoding_format == "base64":
        vectors = map(as_base64, vectors)
    data = [{"object": kind, "index": at, kind: found} for at, found in enumerate(vectors)]
    return stamped_answer(request, encoded, "list", data=data)


def require_task(request: Request, *tasks: Task) -> None:
    """Raises WrongTask, with the task of the model that is served, if it is none of these."""
    runner = services_of(request).runner()
    if (task := runner.manifest.task) not in tasks:
        raise WrongTask(
            f"{runner.name} is served here for {task.replace('_', '-')}: this route is for "
            f"{' or '.join(task.replace('_', '-') for task in tasks)}"
        )


def chosen_output(request: Request, name: Literal["sparse", "multi_vector"]) -> list[Output] | None:
    """What to ask for on a route for one kind of output: None of a model of this task, else what an embedder has of it.

    Raises:
        WrongTask: the model has no such output.
    """
    if name in services_of(request).runner().manifest.token_outputs:
        return [name]
    require_task(request, name)
    return None


def truncation_header(request: Request) -> dict[str, str]:
    """Reports truncated inputs, for which the other APIs' answers have no field."""
    cut = context_of(request.scope).truncated
    return {TRUNCATED: str(cut)} if cut else {}


def check_model(request: Request, *, version: str | None = None) -> str:
    """Chooses the model that the path names, with `/versions/{version}` behind it or not; returns its name.

    Raises:
        ModelNotFound: there is none of this name.
        NotReady: it is not loaded.
    """
    named = request.path_params["model"]
    chosen = choose_model(request, named if version is None else named.removesuffix(f"/versions/{version}"), True)
    chosen.runner()
    return chosen.model.name
