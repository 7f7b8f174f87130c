"""text-embeddings-inference's `POST /embed`, `POST /embed_all`, `POST /embed_sparse` and `GET /health`.

Bare arrays out, and its shape of errors. Its `/embeddings` is Infinity's here; its `/info` and `/tokenize` are ours.
"""

from functools import partial
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, RootModel
from starlette.requests import Request
from starlette.responses import Response

from service.error_shapes import TEI
from service.errors import NotReady, WrongTask
from service.http.route import Route, answer_document
from service.operations.encode import EncodeResult, offload
from service.requests.schemas import EncodeRequest, Inputs, Status
from service.routes.compatible.adapter import embeddings_document, json_response, require_task, run_for
from service.routes.health import answer_readyz
from service.wire import AnswerModel, RequestModel

TAG = "text-embeddings-inference"


class EmbedAllRequest(RequestModel):
    """TEI's request for one vector a token; fields that it does not know are ignored, as TEI does."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [{"inputs": "The cat sat on the mat."}]})

    inputs: Inputs
    """a text, a list of texts, a list of token ids, or a list of lists of token ids (used as given)"""
    truncate: bool | None = None
    """cut texts that are longer than the model takes, and count them in `X-Truncated-Inputs`, unless false"""
    truncation_direction: Literal["Right", "right"] = "Right"
    """the end is cut; the beginning cannot be"""
    prompt_name: str | None = None
    """one of the model's prompts, put before every text; null takes the model's default, where it has one"""


class EmbedRequest(EmbedAllRequest):
    """TEI's request."""

    normalize: bool = True
    """divide each vector by its length, after `dimensions`"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """keep the first so many dimensions"""


class Vectors(RootModel[list[list[float]]]):
    """One vector an input, in their order."""


class TokenVectors(RootModel[list[list[list[float]]]]):
    """One vector a token of each input, in their order."""


async def answer_embed(request: Request, body: EmbedRequest) -> Response:
    """A bare list of vectors."""
    require_task(request, "embedding")
    wanted = EncodeRequest(
        inputs=body.inputs,
        truncate=body.truncate is not False,
        prompt_name=body.prompt_name,
        normalize=body.normalize,
        dimensions=body.dimensions,
    )
    encoded = await run_for(request, wanted)
    return await json_response(request, encoded.answer["embeddings"], encoded)


async def answer_embed_all(request: Request, body: EmbedAllRequest) -> Response:
    """A bare list of lists of vectors: the last hidden states as the model gives them, special tokens included."""
    wanted = EncodeRequest(
        inputs=body.inputs,
        truncate=body.truncate is not False,
        prompt_name=body.prompt_name,
        normalize=False,
        output="tokens",
    )
    encoded = await run_for(request, wanted)
    return await json_response(request, encoded.answer["embeddings"], encoded)


class SparseRequest(EmbedAllRequest):
    """TEI's request for weights of words."""


class SparseValue(AnswerModel):
    """A word of the vocabulary that has a weight."""

    index: int
    value: float


async def answer_embed_sparse(request: Request, body: SparseRequest) -> Response:
    """For each text the words that have a weight, by their ids."""
    require_task(request, "sparse")
    wanted = EncodeRequest(inputs=body.inputs, truncate=body.truncate is not False, prompt_name=body.prompt_name)
    encoded = await run_for(request, wanted)
    return await json_response(
        request, await offload(partial(_sparse_values, encoded), encoded.sizes.built_from), encoded
    )


def _sparse_values(encoded: EncodeResult) -> list[list[dict[str, float]]]:
    return [
        [
            {"index": index, "value": value}
            for index, value in zip(words["indices"].tolist(), words["values"].tolist(), strict=True)
        ]
        for words in encoded.answer["sparse"]
    ]


VECTORS = embeddings_document(Vectors, [[0.0312, -0.0519, 0.0447]])
TOKEN_VECTORS = embeddings_document(TokenVectors, [[[0.0312, -0.0519, 0.0447]]])

ROUTES = (
    Route(
        "POST",
        "/embed",
        answer_embed,
        is_queued=True,
        error_shape=TEI,
        tag=TAG,
        summary="Embeddings, as TEI's",
        answer=VECTORS,
        raises=(WrongTask,),
    ),
    Route(
        "POST",
        "/embed_all",
        answer_embed_all,
        is_queued=True,
        error_shape=TEI,
        tag=TAG,
        summary="One vector a token, as TEI's",
        answer=TOKEN_VECTORS,
    ),
    Route(
        "POST",
        "/embed_sparse",
        answer_embed_sparse,
        is_queued=True,
        error_shape=TEI,
        tag=TAG,
        summary="Weights of words, of a sparse model, as TEI's",
        answer=embeddings_document(list[list[SparseValue]], [[{"index": 4937, "value": 1.21}]]),
        raises=(WrongTask,),
    ),
    Route(
        "GET",
        "/health",
        answer_readyz,
        access="everyone",
        is_probe=True,
        error_shape=TEI,
        tag=TAG,
        summary="May traffic come? As TEI's",
        answer=answer_document(Status, {"status": "ready"}),
        raises=(NotReady,),
    ),
)
