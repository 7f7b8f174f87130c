"""Cohere's `POST /v2/embed` and `POST /v2/rerank`, with its errors: `{"message": ...}`."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from service.answers.packing import as_base64
from service.answers.quantize import check_format, quantize
from service.context import context_of
from service.error_shapes import COHERE
from service.errors import WrongTask
from service.http.route import Route
from service.operations.encode import offload
from service.operations.score import score
from service.requests.plan import check_dimensions
from service.requests.prompts import choose_prompt
from service.requests.rerank_schemas import Documents, plain_texts
from service.requests.schemas import EncodeRequest
from service.requests.scoring import Scoring
from service.routes.compatible.adapter import embeddings_document, json_response, require_task, run_for
from service.runner import Runner
from service.services import services_of
from service.tokenization.inputs import InputNames
from service.tokenization.tokenize import Truncate
from service.wire import AnswerModel, RequestModel

TAG = "Cohere"
EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
DOCUMENT_TOKENS = 4096  # Cohere's default
CUTS: Mapping[str, Truncate] = MappingProxyType({"NONE": False, "START": "start", "END": True})
PROMPTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"search_query": ("query",), "search_document": ("document", "passage", "corpus")}
)
"""Names of the model's prompts for Cohere's kinds of input; other kinds get the model's default."""


class CohereEmbedRequest(RequestModel):
    """What `POST /v2/embed` takes; other fields of Cohere's clients are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [{"model": "mine", "texts": ["The cat sat on the mat."], "input_type": "search_document"}]
        },
    )

    texts: Annotated[list[str], Field(min_length=1)]
    model: str | None = None
    """taken from clients that send one, and not looked at"""
    input_type: str | None = None
    """`search_query` and `search_document` get the model's prompts for these, where it has them"""
    embedding_types: Annotated[list[EmbeddingType], Field(min_length=1)] | None = None
    """which forms of each vector to answer; `float` where none is named"""
    output_dimension: Annotated[int, Field(ge=1)] | None = None
    """keep the first so many dimensions"""
    truncate: Literal["NONE", "START", "END"] | None = None
    """which end of a text is cut that is longer than the model takes, `END` where none is named; `NONE` refuses it"""


class CohereEmbedAnswer(AnswerModel):
    """What `POST /v2/embed` answers: a list of vectors for each form."""

    id: str
    embeddings: dict[str, list[list[float]] | list[list[int]] | list[str]]
    texts: list[str]
    response_type: Literal["embeddings_by_type"]
    meta: dict[str, Any]


class CohereRerankRequest(RequestModel):
    """What `POST /v2/rerank` takes; other fields of Cohere's clients are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [
                {"model": "mine", "query": "Where did the cat sit?", "documents": ["On the mat.", "It rained."]}
            ]
        },
    )

    query: Annotated[str, Field(min_length=1)]
    documents: Documents
    model: str | None = None
    """taken from clients that send one, and not looked at"""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """only the best so many"""
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    """cut documents after so many tokens, 4,096 where none is named"""


class CohereRank(AnswerModel):
    """One document."""

    index: int
    relevance_score: float


class CohereRerankAnswer(AnswerModel):
    """What `POST /v2/rerank` answers, best first."""

    id: str
    results: list[CohereRank]
    meta: dict[str, Any]


async def answer_embed(request: Request, body: CohereEmbedRequest) -> Response:
    """Vectors in each of the forms asked for."""
    require_task(request, "embedding")
    runner = services_of(request).readiness.runner()
    forms = list(dict.fromkeys(body.embedding_types or ("float",)))
    dimensions = check_dimensions(body.output_dimension, runner.config.embedding_size, name="output_dimension")
    for form in forms:
        check_format(form, runner.manifest, dimensions=dimensions, normalize=True, param="embedding_types")
    prompt = choose_prompt(runner.manifest.defaults, name=_prompt_name(body, runner), text=None)
    wanted = EncodeRequest(
        inputs=body.texts,
        prompt=prompt.text if prompt else "",
        dimensions=body.output_dimension,
        truncate=CUTS[body.truncate or "END"],
    )
    encoded = await run_for(request, wanted, names=InputNames(listed="texts"))
    vectors = encoded.answer["embeddings"]
    embeddings = await offload(partial(_in_forms, vectors, forms, runner), encoded.sizes.floats * len(forms))
    answer = {
        "id": context_of(request.scope).request_id,
        "embeddings": embeddings,
        "texts": body.texts,
        "response_type": "embeddings_by_type",
        "meta": _meta(input_tokens=encoded.answer["usage"]["tokens"]),
    }
    return await json_response(request, answer, encoded)


async def answer_rerank(request: Request, body: CohereRerankRequest) -> Response:
    """Documents, best first."""
    longest = body.max_tokens_per_doc or DOCUMENT_TOKENS
    wanted = Scoring([body.query], plain_texts(body.documents), document_tokens=longest)
    scored = await score(services_of(request), context_of(request.scope), wanted)
    answer = {
        "id": context_of(request.scope).request_id,
        "results": [{"index": at, "relevance_score": float(scored.scores[at])} for at in scored.best(body.top_n)],
        "meta": _meta(search_units=1),
    }
    return await json_response(request, answer, scored.encoded)


def _prompt_name(body: CohereEmbedRequest, runner: Runner) -> str | None:
    names = PROMPTS.get(body.input_type or "", ())
    return next((name for name in names if name in runner.manifest.defaults.prompts), None)


def _in_forms(vectors: Any, forms: list[EmbeddingType], runner: Runner) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for form in forms:
        if form == "float":
            found[form] = vectors
        elif form == "base64":
            found[form] = [as_base64(vector) for vector in vectors]
        else:
            found[form] = quantize(vectors, form, runner.manifest)
    return found


def _meta(**units: int) -> dict[str, Any]:
    return {"api_version": {"version": "2"}, "billed_units": units}


ROUTES = (
    Route(
        "POST",
        "/v2/embed",
        answer_embed,
        is_queued=True,
        error_shape=COHERE,
        tag=TAG,
        summary="Embeddings in several forms, as Cohere's",
        answer=embeddings_document(
            CohereEmbedAnswer,
            {
                "id": "4b8c",
                "embeddings": {"int8": [[12, -41, 7]]},
                "texts": ["The cat sat on the mat."],
                "response_type": "embeddings_by_type",
                "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 9}},
            },
        ),
        raises=(WrongTask,),
    ),
    Route(
        "POST",
        "/v2/rerank",
        answer_rerank,
        is_queued=True,
        error_shape=COHERE,
        tag=TAG,
        summary="Order documents by a query, as Cohere",
        answer=embeddings_document(
            CohereRerankAnswer,
            {
                "id": "4b8c",
                "results": [{"index": 0, "relevance_score": 0.63}],
                "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
            },
        ),
        raises=(WrongTask,),
    ),
)
