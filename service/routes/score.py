"""How well documents fit a query: `POST /rerank` (TEI, Infinity), `/v1/rerank` (Jina), `/score` and `/v1/score` (vLLM).

A body of `/rerank` that has `texts` is TEI's and answered with a bare list; one that has `documents` is Infinity's.
Beside these `attention` asks a cross-encoder what the two texts of each pair look at in each other.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Self

from pydantic import model_validator
from starlette.requests import Request
from starlette.responses import Response

from service.answers.scores import best
from service.context import context_of
from service.errors import Invalid, WrongTask
from service.http.route import Route
from service.operations.score import Scored, score
from service.requests.schemas import ModelChoice, TextList, example
from service.requests.scoring import (
    JinaRequest,
    RerankAnswer,
    RerankRequest,
    Scoring,
    ScoringOptions,
    TeiRank,
    TokenMatch,
    plain_texts,
)
from service.routes.adapter import embeddings_document, json_response, stamped_answer
from service.services import services_of
from service.tokenization.inputs import InputNames
from service.wire import JINA, OURS, TEI, AnswerModel

OneOrMany = str | TextList
SCORE_EXAMPLE = {
    "id": "4b8c",
    "object": "list",
    "created": 1_780_000_000,
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "data": [{"index": 0, "object": "score", "score": 0.63}],
    "usage": {"prompt_tokens": 18, "total_tokens": 18},
}


FORMS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
"""What vLLM has called the two sides."""


class ScoreRequest(ScoringOptions, ModelChoice, extra="ignore"):
    """What `POST /score` takes: one query for all documents, or one for each; other fields are ignored."""

    model_config = example(queries="Where did the cat sit?", documents=["The cat sat on the mat."])

    queries: OneOrMany | None = None
    """a text, or as many as there are documents"""
    documents: OneOrMany | None = None
    """a text or a list of texts"""
    items: OneOrMany | None = None
    """another name of `documents`"""
    text_1: OneOrMany | None = None
    """the older name of `queries`"""
    text_2: OneOrMany | None = None
    """the older name of `documents`"""
    data_1: OneOrMany | None = None
    """vLLM's name of `queries` where they may be more than texts; here they are texts"""
    data_2: OneOrMany | None = None
    """the same of `documents`"""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.form() not in FORMS:
            raise ValueError("expected queries and documents (or, as older clients send them, text_1 and text_2)")
        return self

    def form(self) -> tuple[str, ...]:
        """The names of the texts that were given."""
        names = dict.fromkeys(name for form in FORMS for name in form)
        return tuple(name for name in names if getattr(self, name) is not None)


class ScoreEntry(AnswerModel):
    """One document."""

    index: int
    object: Literal["score"]
    score: float
    matches: list[TokenMatch] | None = None


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
    asked, name = body.form()
    queries, documents = ([one] if isinstance(one, str) else one for one in (getattr(body, asked), getattr(body, name)))
    if len(queries) not in {1, len(documents)}:
        raise Invalid.at(
            name, f"{len(queries)} queries and {len(documents)} documents: send one query, or one for each"
        )
    wanted = Scoring(queries, documents, names=InputNames(name), query_name=asked, **body.options())
    scored = await score(services_of(request), context_of(request.scope), wanted)
    data = [
        {"index": at, "object": "score", "score": float(found), **scored.beside(at)}
        for at, found in enumerate(scored.scores)
    ]
    return await json_response(request, stamped_answer(request, scored.encoded, "list", data=data), scored.encoded)


async def answer_rerank(request: Request, body: RerankRequest) -> Response:
    """Documents, best first."""
    is_tei = body.texts is not None
    documents = body.texts or plain_texts(body.documents or ())
    wanted = Scoring(
        queries=[body.query],
        documents=documents,
        names=InputNames("texts" if is_tei else "documents"),
        truncate=body.truncation(),
        attention=body.attention,
        head_mask=body.head_mask,
        most=body.top_n or None,
        **body.options(),
    )
    scored = await score(services_of(request), context_of(request.scope), wanted)
    if is_tei:
        answer: Any = _ranked(scored, wanted.most, "score", "text", documents if body.return_text else None)
    else:
        answer = _rerank_answer(request, scored, wanted.most, documents if body.return_documents else None)
    return await json_response(request, answer, scored.encoded, has_attention="attention" in scored.encoded.answer)


async def answer_jina(request: Request, body: JinaRequest) -> Response:
    """Documents, best first, as Jina and vLLM answer them."""
    documents = plain_texts(body.documents)
    wanted = Scoring(
        queries=[body.query],
        documents=documents,
        document_tokens=body.max_tokens_per_doc or None,
        raw_scores=body.wants_logits(),
    )
    scored = await score(services_of(request), context_of(request.scope), wanted)
    shown = [{"text": text} for text in documents] if body.return_documents is not False else None
    return await json_response(request, _rerank_answer(request, scored, body.top_n or None, shown), scored.encoded)


def _rerank_answer(request: Request, scored: Scored, most: int | None, shown: Sequence[Any] | None) -> dict[str, Any]:
    results = _ranked(scored, most, "relevance_score", "document", shown)
    return stamped_answer(request, scored.encoded, "rerank", results=results)


def _ranked(
    scored: Scored, most: int | None, score_name: str, text_name: str, shown: Sequence[Any] | None
) -> list[dict[str, Any]]:
    """The best documents with their scores, and with what is shown of each, if anything."""
    return [
        {
            "index": at,
            score_name: float(scored.scores[at]),
            **({} if shown is None else {text_name: shown[at]}),
            **scored.beside(at),
        }
        for at in best(scored.scores, most)
    ]


RERANK_EXAMPLE: dict[str, Any] = {
    "id": "4b8c",
    "object": "rerank",
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "created": 1_780_000_000,
    "results": [{"index": 0, "relevance_score": 0.63}, {"index": 1, "relevance_score": 0.04}],
    "usage": {"prompt_tokens": 24, "total_tokens": 24},
}


_post = partial(Route, "POST", is_queued=True, tag="reranking", raises=(WrongTask,))
SCORE_ANSWER = embeddings_document(ScoreAnswer, SCORE_EXAMPLE)

ROUTES = (
    _post(
        "/rerank",
        answer_rerank,
        error_shape=TEI,
        body_error_shapes={"documents": OURS},
        summary="Order documents by a query, as TEI and Infinity",
        answer=embeddings_document(RerankAnswer | list[TeiRank], RERANK_EXAMPLE),
    ),
    _post(
        "/v1/rerank",
        answer_jina,
        error_shape=JINA,
        summary="The same, as Jina and vLLM",
        answer=embeddings_document(RerankAnswer, RERANK_EXAMPLE),
    ),
    _post("/score", answer_score, summary="Score texts against a query, as vLLM", answer=SCORE_ANSWER),
    _post("/v1/score", answer_score, summary="The same", answer=SCORE_ANSWER),
)
