"""`POST /score` and `/v1/score`: how well texts fit each other, in vLLM's form."""

import time
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.errors import Invalid, WrongTask
from service.http.route import Route
from service.operations.score import score
from service.requests.scoring import Scoring
from service.routes.compatible.adapter import embeddings_document, json_response
from service.services import services_of
from service.tokenization.inputs import InputNames
from service.wire import AnswerModel, RequestModel

OneOrMany = str | Annotated[list[str], Field(min_length=1)]
EXAMPLE = {
    "id": "4b8c",
    "object": "list",
    "created": 1_780_000_000,
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "data": [{"index": 0, "object": "score", "score": 0.63}],
    "usage": {"prompt_tokens": 18, "total_tokens": 18},
}


class ScoreRequest(RequestModel):
    """What `POST /score` takes: one query for all documents, or one for each; other fields are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [{"queries": "Where did the cat sit?", "documents": ["The cat sat on the mat."]}],
        },
    )

    queries: OneOrMany | None = None
    """a text, or as many as there are documents"""
    documents: OneOrMany | None = None
    """a text or a list of texts"""
    text_1: OneOrMany | None = None
    """the older name of `queries`"""
    text_2: OneOrMany | None = None
    """the older name of `documents`"""
    model: str | None = None
    """taken from clients that send one, and not looked at"""
    raw_scores: bool = False
    """a cross-encoder's scores as logits"""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        new, old = (self.queries, self.documents), (self.text_1, self.text_2)
        given = [pair for pair in (new, old) if any(text is not None for text in pair)]
        if len(given) != 1 or None in given[0]:
            raise ValueError("expected queries and documents (or, as older clients send them, text_1 and text_2)")
        return self


class ScoreEntry(AnswerModel):
    """One document."""

    index: int
    object: Literal["score"]
    score: float


class ScoreAnswer(AnswerModel):
    """What `POST /score` answers; one score a document, in their order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreEntry]
    usage: dict[str, int]


async def answer_score(request: Request, body: ScoreRequest) -> Response:
    """One score a document."""
    queries, documents = _listed(body.queries or body.text_1), _listed(body.documents or body.text_2)
    asked, name = ("queries", "documents") if body.documents is not None else ("text_1", "text_2")
    if len(queries) not in {1, len(documents)}:
        raise Invalid(
            f"{name}: {len(queries)} queries and {len(documents)} documents: send one query, or one for each",
            param=name,
        )
    wanted = Scoring(queries, documents, names=InputNames(name), query_name=asked, raw_scores=body.raw_scores)
    scored = await score(services_of(request), context_of(request.scope), wanted)
    answer = {
        "id": context_of(request.scope).request_id,
        "object": "list",
        "created": int(time.time()),
        "model": scored.model,
        "data": [{"index": at, "object": "score", "score": float(found)} for at, found in enumerate(scored.scores)],
        "usage": {"prompt_tokens": scored.tokens, "total_tokens": scored.tokens},
    }
    return await json_response(request, answer, scored.encoded)


def _listed(texts: Any) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts or ())


ROUTES = tuple(
    Route(
        "POST",
        path,
        answer_score,
        is_queued=True,
        tag="reranking",
        summary=summary,
        answer=embeddings_document(ScoreAnswer, EXAMPLE),
        raises=(WrongTask,),
    )
    for path, summary in (("/score", "Score texts against a query, as vLLM"), ("/v1/score", "The same"))
)
