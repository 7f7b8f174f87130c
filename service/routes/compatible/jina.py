"""Jina's `POST /v1/multi-vector`: a vector for each token, of models of late interaction."""

from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from service.errors import WrongTask
from service.http.route import Route
from service.operations.encode import offload
from service.requests.schemas import EncodeRequest, ModelChoice, VectorFormat, example
from service.requests.scoring import TextObject, plain_texts
from service.routes.adapter import chosen_output, embeddings_document, json_response, list_vectors, run_for
from service.routes.compatible.openai import EmbeddingsUsage
from service.tokenization.inputs import InputNames
from service.wire import JINA, AnswerModel


class MultiVectorRequest(ModelChoice, extra="ignore"):
    """What `POST /v1/multi-vector` takes; other fields of Jina's clients are ignored."""

    model_config = example(input=["The cat sat on the mat."], input_type="document")

    input: Annotated[list[str | TextObject], Field(min_length=1, fail_fast=True)]
    """texts, or objects with a `text`"""
    input_type: Literal["query", "document"] = "document"
    """how the texts are read: with the prompts, lengths and expansion that the model has for them"""
    embedding_type: Literal["float", "base64", VectorFormat] = "float"
    """the form of the vectors; `"base64"`: little-endian float32, row by row"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """truncate vectors to N dimensions, and normalise again"""
    truncate: bool = True
    """cut texts that are longer than the model takes; false refuses them"""


class MultiVector(AnswerModel):
    """One input's vectors."""

    object: Literal["embeddings"]
    index: int
    embeddings: list[list[float]] | list[list[int]] | str


class MultiVectorAnswer(AnswerModel):
    """What `POST /v1/multi-vector` answers: a vector for each token that counts."""

    id: str
    object: Literal["list"]
    created: int
    data: list[MultiVector]
    model: str
    usage: EmbeddingsUsage


async def answer_multi_vector(request: Request, body: MultiVectorRequest) -> Response:
    """The vectors of each input's tokens, as Jina answers them."""
    outputs = chosen_output(request, "multi_vector")
    wanted = EncodeRequest(
        inputs=plain_texts(body.input),
        role=body.input_type if outputs is None else None,
        outputs=outputs,
        truncate=body.truncate,
        dimensions=body.dimensions,
        encoding_format=body.embedding_type,
    )
    encoded = await run_for(request, wanted, names=InputNames("input"))
    texts = encoded.answer["embeddings" if outputs is None else "multi_vector"]
    write = partial(list_vectors, request, encoded, texts, "embeddings", body.embedding_type)
    return await json_response(request, await offload(write, encoded.sizes.built_from), encoded)


EXAMPLE = {
    "id": "4b8c",
    "object": "list",
    "created": 1_780_000_000,
    "data": [{"object": "embeddings", "index": 0, "embeddings": [[0.0312, -0.0519], [0.0447, 0.1021]]}],
    "model": "colbert",
    "usage": {"prompt_tokens": 7, "total_tokens": 7},
}

ROUTES = (
    Route(
        "POST",
        "/v1/multi-vector",
        answer_multi_vector,
        is_queued=True,
        error_shape=JINA,
        tag="Jina",
        summary="A vector for each token, as Jina's",
        answer=embeddings_document(MultiVectorAnswer, EXAMPLE),
        raises=(WrongTask,),
    ),
)
