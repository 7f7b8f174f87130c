"""text-embeddings-inference's `/embed`, `/embed_all`, `/embed_sparse`, `/health`, and its `POST /`.

Bare arrays out, and its shape of errors. Its `/embeddings` is Infinity's here; its `/info` and `/tokenize` are ours.

`POST /` does what the model is for, as in TEI: an embedder embeds, a classifier predicts, a sparse model weighs words.
A body that only one route takes goes to that one: with `query` to `/rerank`; as huggingface_hub sends them, one
sentence beside others to `/similarity`, and parameters with `candidate_labels` to `/zero-shot`.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, Field, RootModel, SkipValidation
from starlette.requests import Request
from starlette.responses import Response

from model.config_parts import Task
from service.errors import NotReady, WrongTask
from service.http.route import Route, answer_document
from service.operations.encode import offload
from service.requests.schemas import EncodeRequest, Inputs, ModelChoice, TeiTruncation, example
from service.requests.scoring import RerankAnswer, RerankRequest, TeiRank
from service.requests.zero_shot import ZeroShotRequest
from service.routes.adapter import chosen_output, embeddings_document, json_response, require_task, run_for
from service.routes.predict import PredictAnswer, PredictRequest, answer_predict, answer_zero_shot
from service.routes.score import answer_rerank
from service.routes.similarity import SimilarityRequest, answer_similarity
from service.routes.status import Status, answer_readyz
from service.services import services_of
from service.wire import TEI, AnswerModel, validate

TAG = "text-embeddings-inference"
VECTOR = [0.0312, -0.0519, 0.0447]


class EmbedAllRequest(TeiTruncation, ModelChoice, extra="ignore"):
    """TEI's request for one vector a token; fields that it does not know are ignored, as TEI does."""

    model_config = example(inputs="The cat sat on the mat.")

    inputs: Inputs
    """a text, a list of texts, a list of token ids, or a list of lists of token ids (used as given)"""
    prompt_name: str | None = None
    """one of the model's prompts, put before every text; null means the model's default, if it has one"""

    def to_encode(self, **options: Any) -> EncodeRequest:
        """The same as a request to encode, with further options of it."""
        return EncodeRequest(inputs=self.inputs, truncate=self.truncation(), prompt_name=self.prompt_name, **options)


class EmbedRequest(EmbedAllRequest):
    """TEI's request."""

    normalize: bool = True
    """divide each vector by its length, after `dimensions`"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """truncate vectors to N dimensions"""


async def answer_embed(request: Request, body: EmbedRequest) -> Response:
    """A bare list of vectors."""
    require_task(request, "embedding")
    encoded = await run_for(request, body.to_encode(normalize=body.normalize, dimensions=body.dimensions))
    return await json_response(request, encoded.answer["embeddings"], encoded)


async def answer_embed_all(request: Request, body: EmbedAllRequest) -> Response:
    """A bare list of lists of vectors: the last hidden states as the model gives them, special tokens included."""
    encoded = await run_for(request, body.to_encode(normalize=False, output="tokens"))
    return await json_response(request, encoded.answer["embeddings"], encoded)


class SparseRequest(EmbedAllRequest):
    """TEI's request for weights of words; `role` is not TEI's."""

    role: Literal["query", "document"] | None = None
    """as of `POST /encode`"""


class SparseValue(AnswerModel):
    """A word of the vocabulary that has a weight."""

    index: int
    value: float


async def answer_embed_sparse(request: Request, body: SparseRequest) -> Response:
    """For each text the words that have a weight, by their ids."""
    encoded = await run_for(request, body.to_encode(role=body.role, outputs=chosen_output(request, "sparse")))
    write = partial(_write_words, encoded.answer["sparse"])
    return await json_response(request, await offload(write, encoded.sizes.built_from), encoded)


def _write_words(sparse: list[dict[str, Any]]) -> list[memoryview]:
    """The words of each text as JSON: as hundreds of thousands of objects they would hold up every other thread."""
    written = []
    for words in sparse:
        pairs = zip(words["indices"].tolist(), words["values"], strict=True)
        values = [{"index": index, "value": value} for index, value in pairs]
        written.append(memoryview(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)))
    return written


Chosen = tuple[type[BaseModel], Callable[[Request, Any], Coroutine[Any, Any, Response]]]
BY_TASK: Mapping[Task, Chosen] = {
    "classification": (PredictRequest, answer_predict),
    "token_classification": (PredictRequest, answer_predict),
    "sparse": (SparseRequest, answer_embed_sparse),
}


HostBody = EmbedRequest | PredictRequest | SparseRequest | SimilarityRequest | RerankRequest | ZeroShotRequest
HostAnswer = list[list[float]] | PredictAnswer | list[list[SparseValue]] | list[float] | RerankAnswer | list[TeiRank]


class HostRequest(RootModel[SkipValidation[HostBody]]):
    """The body of one of TEI's routes; the model's task and the body's fields say which."""

    @property
    def model(self) -> str | None:
        """The model that it names, if any."""
        named = self.root.get("model") if isinstance(self.root, dict) else None
        return named if isinstance(named, str) else None


async def answer_host(request: Request, body: HostRequest) -> Response:
    """As the route that the body is for."""
    model, endpoint = _choose(body.root, services_of(request).runner().manifest.task)
    return await endpoint(request, validate(model, body.root))


def _choose(value: Any, task: Task) -> Chosen:
    known = value if isinstance(value, dict) else {}
    if isinstance(theirs := known.get("parameters"), dict) and "candidate_labels" in theirs:
        return ZeroShotRequest, answer_zero_shot
    if "query" in known:
        return RerankRequest, answer_rerank
    if isinstance(known.get("inputs"), dict):
        return SimilarityRequest, answer_similarity
    return BY_TASK.get(task, (EmbedRequest, answer_embed))


_tei = partial(Route, error_shape=TEI, tag=TAG)
_post = partial(_tei, "POST", is_queued=True)

ROUTES = (
    _post(
        "/embed",
        answer_embed,
        summary="Embeddings, as TEI's",
        answer=embeddings_document(list[list[float]], [VECTOR]),
        raises=(WrongTask,),
    ),
    _post(
        "/embed_all",
        answer_embed_all,
        summary="One vector a token, as TEI's",
        answer=embeddings_document(list[list[list[float]]], [[VECTOR]]),
    ),
    _post(
        "/embed_sparse",
        answer_embed_sparse,
        summary="Weights of words, of a sparse model, as TEI's",
        answer=embeddings_document(list[list[SparseValue]], [[{"index": 4937, "value": 1.21}]]),
        raises=(WrongTask,),
    ),
    _post(
        "/",
        answer_host,
        summary="What the model is for: TEI's clients that know only a host",
        answer=embeddings_document(HostAnswer, [VECTOR]),
        raises=(WrongTask,),
    ),
    _tei(
        "GET",
        "/health",
        answer_readyz,
        access="everyone",
        is_probe=True,
        summary="May traffic come? As TEI's",
        answer=answer_document(Status, {"status": "ready"}),
        raises=(NotReady,),
    ),
)
