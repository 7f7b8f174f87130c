"""`POST /`, for clients of text-embeddings-inference that know only a host: what the model is for.

An embedder embeds, a classifier predicts, a sparse model weighs words, as in TEI. A body that only one route takes goes
to that one: with `query` to `/rerank`, with one sentence beside others to `/similarity`, as huggingface_hub sends it.
"""

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, RootModel, SkipValidation
from starlette.requests import Request
from starlette.responses import Response

from model.tasks.settings import Task
from service.error_shapes import TEI
from service.errors import WrongTask
from service.http.route import Route
from service.http.validation import validate_value
from service.requests.rerank_schemas import RerankAnswer, RerankRequest, TeiRank
from service.routes.compatible.adapter import embeddings_document
from service.routes.compatible.tei import (
    TAG,
    EmbedRequest,
    SparseRequest,
    SparseValue,
    answer_embed,
    answer_embed_sparse,
)
from service.routes.predict import Prediction, PredictRequest, answer_predict
from service.routes.rerank import answer_rerank
from service.routes.similarity import SimilarityRequest, answer_similarity
from service.services import services_of

Chosen = tuple[type[BaseModel], Callable[[Request, Any], Coroutine[Any, Any, Response]]]
EMBED: Chosen = (EmbedRequest, answer_embed)
BY_TASK: Mapping[Task, Chosen] = MappingProxyType(
    {"classification": (PredictRequest, answer_predict), "sparse": (SparseRequest, answer_embed_sparse)}
)


class HostRequest(
    RootModel[SkipValidation[EmbedRequest | PredictRequest | SparseRequest | SimilarityRequest | RerankRequest]]
):
    """The body of one of TEI's routes; the model's task and the body's fields say which."""


async def answer_host(request: Request, body: HostRequest) -> Response:
    """As the route that the body is for."""
    task = services_of(request).readiness.runner().manifest.task
    model, endpoint = _choose(body.root, task)
    return await endpoint(request, validate_value(model, body.root))


def _choose(value: Any, task: Task) -> Chosen:
    if isinstance(value, dict) and "query" in value:
        return RerankRequest, answer_rerank
    if isinstance(value, dict) and isinstance(value.get("inputs"), dict):
        return SimilarityRequest, answer_similarity
    return BY_TASK.get(task, EMBED)


Answer = list[list[float]] | list[Prediction] | list[list[Prediction]] | list[list[SparseValue]] | list[float]
ROUTES = (
    Route(
        "POST",
        "/",
        answer_host,
        is_queued=True,
        error_shape=TEI,
        tag=TAG,
        summary="What the model is for: TEI's clients that know only a host",
        answer=embeddings_document(Answer | RerankAnswer | list[TeiRank], [[0.0312, -0.0519, 0.0447]]),
        raises=(WrongTask,),
    ),
)
