"""Cohere's `POST /v2/embed` and `POST /v2/rerank`, with its errors: `{"message": ...}`."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from service.answers.packing import as_base64
from service.answers.scores import best
from service.answers.vectors import quantize
from service.context import context_of
from service.errors import TooLarge, WrongTask
from service.http.route import Route
from service.operations.encode import offload
from service.operations.score import score
from service.requests.attention import FLOAT_BYTES
from service.requests.plan import check_dimensions, check_format
from service.requests.roles import prompt_of_kind
from service.requests.schemas import EncodeRequest, ModelChoice, TextList, VectorFormat, example
from service.requests.scoring import Documents, Scoring, plain_texts
from service.requests.sizes import BASE64_BYTES, JSON_BYTES, TENSOR_BYTES
from service.routes.adapter import embeddings_document, json_response, require_task, run_for
from service.runner import Runner
from service.services import services_of
from service.tokenization.inputs import CUTS, Cut, InputNames
from service.wire import COHERE, AnswerModel

TAG = "Cohere"
EmbeddingType = Literal["float", VectorFormat, "base64"]
DOCUMENT_TOKENS = 4096  # Cohere's default
FORM_BYTES: Mapping[EmbeddingType, float] = {
    "float": JSON_BYTES - TENSOR_BYTES,
    "base64": BASE64_BYTES - TENSOR_BYTES,
    **dict.fromkeys(("int8", "uint8"), 1 + 5),
    **dict.fromkeys(("binary", "ubinary"), (1 + 5) / 8),
}
"""Held of each dimension for a form, besides the vector as computed: as an array, and as text."""


class CohereEmbedRequest(ModelChoice, extra="ignore"):
    """What `POST /v2/embed` takes; other fields of Cohere's clients are ignored."""

    model_config = example(model="mine", texts=["The cat sat on the mat."], input_type="search_document")

    texts: TextList
    input_type: str | None = None
    """`search_query` and `search_document` get the model's prompts for these, if it has them"""
    embedding_types: Annotated[list[EmbeddingType], Field(min_length=1, fail_fast=True)] | None = None
    """which forms of each vector to answer; `float` if none is named"""
    output_dimension: Annotated[int, Field(ge=1)] | None = None
    """truncate vectors to N dimensions"""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """most tokens of a text, if these are fewer than the model takes"""
    truncate: Cut | None = None
    """which end of a text is cut that is longer than the model takes, `END` if none is named; `NONE` refuses it"""


class CohereEmbedAnswer(AnswerModel):
    """What `POST /v2/embed` answers: a list of vectors for each form."""

    id: str
    embeddings: dict[str, list[list[float]] | list[list[int]] | list[str]]
    texts: list[str]
    response_type: Literal["embeddings_by_type"]
    meta: dict[str, Any]


class CohereRerankRequest(ModelChoice, extra="ignore"):
    """What `POST /v2/rerank` takes; other fields of Cohere's clients are ignored."""

    model_config = example(model="mine", query="Where did the cat sit?", documents=["On the mat.", "It rained."])

    query: Annotated[str, Field(min_length=1)]
    documents: Documents
    top_n: Annotated[int, Field(ge=1)] | None = None
    """only the best N"""
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    """cut documents after this many tokens, 4,096 if none is named"""


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
    runner = services_of(request).runner()
    forms = list(dict.fromkeys(body.embedding_types or ("float",)))
    dimensions = check_dimensions(body.output_dimension, runner.config.embedding_size, name="output_dimension")
    for form in forms:
        normalize = runner.manifest.defaults.unit_length
        check_format(form, runner.manifest, dimensions=dimensions, normalize=normalize, param="embedding_types")
    form_bytes = _form_bytes(forms, len(body.texts) * dimensions, services_of(request).settings.max_embedding_bytes)
    most = None if body.max_tokens is None else (body.max_tokens,)
    wanted = EncodeRequest(
        inputs=body.texts,
        prompt_name=prompt_of_kind(body.input_type, runner.manifest),
        dimensions=body.output_dimension,
        truncate=CUTS[body.truncate or "END"],
    )
    encoded = await run_for(
        request, wanted, names=InputNames(listed="texts"), most_tokens=most, beside_bytes=form_bytes
    )
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
        "results": [
            {"index": at, "relevance_score": float(scored.scores[at])} for at in best(scored.scores, body.top_n)
        ],
        "meta": _meta(search_units=1),
    }
    return await json_response(request, answer, scored.encoded)


def _form_bytes(forms: list[EmbeddingType], numbers: int, most: int) -> int:
    """Bytes that the forms hold of this many numbers beside one form of floats; as float32 all may have `most`."""
    if (size := FLOAT_BYTES * numbers * len(forms)) > most:
        raise TooLarge.at(
            "embedding_types",
            f"the answer would hold {size} bytes of embeddings, at most {most} are allowed; send fewer texts, or ask "
            "for fewer forms or dimensions",
        )
    return int(numbers * max(0, sum(FORM_BYTES[form] for form in forms) - FORM_BYTES["float"]))


def _in_forms(vectors: Any, forms: list[EmbeddingType], runner: Runner) -> dict[str, Any]:
    def write(form: EmbeddingType) -> Any:
        if form == "base64":
            return [as_base64(vector) for vector in vectors]
        return quantize(vectors, form, runner.manifest)

    return {form: write(form) for form in forms}


def _meta(**units: int) -> dict[str, Any]:
    return {"api_version": {"version": "2"}, "billed_units": units}


EMBED_EXAMPLE = {
    "id": "4b8c",
    "embeddings": {"int8": [[12, -41, 7]]},
    "texts": ["The cat sat on the mat."],
    "response_type": "embeddings_by_type",
    "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 9}},
}
RERANK_EXAMPLE = {
    "id": "4b8c",
    "results": [{"index": 0, "relevance_score": 0.63}],
    "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
}
_post = partial(Route, "POST", is_queued=True, error_shape=COHERE, tag=TAG, raises=(WrongTask,))

ROUTES = (
    _post(
        "/v2/embed",
        answer_embed,
        summary="Embeddings in several forms, as Cohere's",
        answer=embeddings_document(CohereEmbedAnswer, EMBED_EXAMPLE),
    ),
    _post(
        "/v2/rerank",
        answer_rerank,
        summary="Order documents by a query, as Cohere",
        answer=embeddings_document(CohereRerankAnswer, RERANK_EXAMPLE),
    ),
)
