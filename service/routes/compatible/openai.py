"""OpenAI's `POST /v1/embeddings` and `GET /v1/models`, and what other adapters borrow from them.

Any `model` is taken, and the answer says which one it was: this process serves one, and clients send placeholders such
as `text-embedding-3-small`, often ones that their users never see. Token ids are OpenAI's tokenizer's unless someone
took care; those are refused, because they would give a vector without meaning.
"""

from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from service.answers.packing import as_base64
from service.answers.quantize import VectorFormat, is_quantized
from service.errors import Invalid, ModelNotFound, NotReady
from service.http.media import JSON
from service.http.route import Route, answer_document
from service.operations.encode import EncodeResult, offload
from service.requests.schemas import EncodeRequest, Inputs, PromptText
from service.routes.compatible.adapter import (
    check_model,
    embeddings_document,
    json_response,
    require_task,
    run_for,
)
from service.runner import Runner
from service.services import services_of
from service.tokenization.inputs import InputNames
from service.wire import AnswerModel, RequestModel

TAG = "OpenAI"
EXAMPLE = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.0312, -0.0519, 0.0447]}],
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "usage": {"prompt_tokens": 7, "total_tokens": 7},
}
MODEL_EXAMPLE = {
    "id": "sentence-transformers/all-MiniLM-L6-v2",
    "object": "model",
    "created": 1792000000,
    "owned_by": "polyhead",
}
MODEL_IN_PATH = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "may hold slashes",
    "schema": {"type": "string", "minLength": 1},
}


class EmbeddingsRequest(RequestModel):
    """OpenAI's request. The last three fields are ours, for clients that can send more (`extra_body`)."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "any", "input": "The cat sat on the mat."}]})

    input: Inputs
    """a text, a list of texts, a list of token ids, or a list of lists of token ids: this model's, with its special
    tokens"""
    model: str | None = None
    """anything: the answer names the model that is served"""
    encoding_format: Literal["float", "base64"] | VectorFormat | None = "float"
    """`"base64"`: little-endian float32; null is `"float"`, for clients that write what they were not told; `"int8"`,
    `"uint8"`, `"binary"` and `"ubinary"` are ours: whole numbers, as `POST /encode` answers them"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """keep the first so many dimensions, and normalise again"""
    user: str | None = None
    """not used, not kept"""
    truncate: bool = True
    """cut texts that are longer than the model takes, and count them in `X-Truncated-Inputs`; false refuses them"""
    prompt_name: str | None = None
    """one of the model's prompts, put before every text; null takes the model's default, where it has one"""
    prompt: PromptText | None = None
    """a prompt of your own instead; empty for none"""


class Embedding(AnswerModel):
    """One input's vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | list[int] | str


class EmbeddingsUsage(AnswerModel):
    """What a request cost."""

    prompt_tokens: int
    """tokens of all inputs, special tokens included"""
    total_tokens: int
    """the same"""


class EmbeddingsAnswer(AnswerModel):
    """OpenAI's answer."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


class Model(AnswerModel):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    """when the artifact was written, seconds since 1970"""
    owned_by: str


class ModelList(AnswerModel):
    """The models that are served: one."""

    object: Literal["list"]
    data: list[Model]


async def answer_embeddings(request: Request, body: EmbeddingsRequest) -> Response:
    """One normalised vector an input, in their order."""
    check_token_ids(body.input, services_of(request).readiness.runner())
    wanted = EncodeRequest(
        inputs=body.input,
        truncate=body.truncate,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
        prompt=body.prompt,
        encoding_format=body.encoding_format if is_quantized(body.encoding_format) else "float",
    )
    require_task(request, "embedding")
    encoded = await run_for(request, wanted, names=InputNames("input"))
    answer = await offload(partial(make_answer, encoded, body.encoding_format), encoded.sizes.floats)
    return await json_response(request, answer, encoded)


async def answer_models(request: Request) -> Response:
    """A list of one: a process serves one model."""
    listed = {"object": "list", "data": [describe_model(request)]}
    return Response(orjson.dumps(listed), media_type=JSON)


async def answer_model(request: Request) -> Response:
    """The model that is served, by its own name."""
    check_model(request)
    return Response(orjson.dumps(describe_model(request)), media_type=JSON)


def describe_model(request: Request) -> dict[str, Any]:
    """The model as OpenAI lists one."""
    runner = services_of(request).readiness.runner()
    return {
        "id": runner.manifest.model,
        "object": "model",
        "created": int(runner.written),
        "owned_by": "polyhead",
    }


def check_token_ids(value: Any, runner: Runner) -> None:
    """Refuses token ids of another tokenizer, as OpenAI's clients make them.

    `langchain-openai` sends ids of `cl100k_base` unless told otherwise. Many are words of this vocabulary too, so they
    would be encoded to something else without a sign; the special tokens around an input tell them apart. What is no
    list of token ids is left to those who check all inputs.

    Raises:
        Invalid: ids without the special tokens that this model's tokenizer puts around a text.
    """
    rows = value if type(value) is list and value and type(value[0]) is list else [value]
    first, last = runner.tokenizer.special_ends
    for index, row in enumerate(rows):
        if type(row) is not list or not row or type(row[0]) is not int:
            return
        if (first is not None and row[0] != first) or (last is not None and row[-1] != last):
            raise Invalid(
                f"input[{index}]: these token ids are not this model's: its own begin with {first} and end with "
                f"{last} (POST /tokenize makes them). Send texts; in LangChain set check_embedding_ctx_length=False",
                param=f"input.{index}",
            )


def make_answer(encoded: EncodeResult, encoding_format: str | None) -> dict[str, Any]:
    """OpenAI's answer, arrays still arrays unless they are written in base64."""
    vectors = encoded.answer["embeddings"]
    if encoding_format == "base64":
        vectors = map(as_base64, vectors)
    tokens = encoded.answer["usage"]["tokens"]
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)],
        "model": encoded.answer["model"],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


ROUTES = (
    Route(
        "POST",
        "/v1/embeddings",
        answer_embeddings,
        is_queued=True,
        tag=TAG,
        summary="Embeddings, as OpenAI's",
        answer=embeddings_document(EmbeddingsAnswer, EXAMPLE),
    ),
    Route(
        "GET",
        "/v1/models",
        answer_models,
        tag=TAG,
        summary="The models served, as OpenAI's",
        answer=answer_document(ModelList, {"object": "list", "data": [MODEL_EXAMPLE]}),
        raises=(NotReady,),
    ),
    Route(
        "GET",
        "/v1/models/{model:path}",
        answer_model,
        tag=TAG,
        summary="One model, as OpenAI's",
        answer=answer_document(Model, MODEL_EXAMPLE),
        raises=(ModelNotFound, NotReady),
        parameters=(MODEL_IN_PATH,),
    ),
)
