"""`POST /rerank`, in TEI's form and in Infinity's, and `POST /v1/rerank`, Jina's: documents in the order of their fit.

What has `texts` is TEI's and answered with a bare list; what has `documents` is Infinity's and Jina's. Beside these
`attention` asks a cross-encoder what the two texts of each pair look at in each other.
"""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.error_shapes import OURS, RERANK, TEI
from service.errors import WrongTask
from service.http.route import Route
from service.inference.backend import Float32Array
from service.operations.score import Scored, Scoring, score
from service.requests.attention_schemas import Attention, AttentionRequest
from service.requests.head_mask import HeadMask
from service.routes.compatible.adapter import embeddings_document, json_response
from service.services import services_of
from service.tokenization.inputs import InputNames
from service.wire import AnswerModel, RequestModel

TEXTS, DOCUMENTS = InputNames(listed="texts"), InputNames(listed="documents")
JINA_EXAMPLE: dict[str, Any] = {
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "query": "Where did the cat sit?",
    "documents": ["The cat sat on the mat.", "It rained all day."],
}


class TextObject(RequestModel):
    """A document as an object, as Jina and Cohere take it."""

    model_config = ConfigDict(extra="ignore")

    text: str


Documents = Annotated[list[str | TextObject], Field(min_length=1)]


class RerankRequest(RequestModel):
    """What `POST /rerank` takes: `texts` as TEI, or `documents` as Infinity; other fields of theirs are ignored."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [JINA_EXAMPLE]})

    query: Annotated[str, Field(min_length=1)]
    """what the documents are compared with"""
    texts: Annotated[list[str], Field(min_length=1)] | None = None
    """TEI's name of the documents"""
    documents: Documents | None = None
    """texts, or objects with a `text`"""
    model: str | None = None
    """taken from clients that send one, and not looked at"""
    raw_scores: bool = False
    """a cross-encoder's scores as logits, in place of numbers from 0 to 1"""
    return_text: bool = False
    """TEI's: answer each document's text, too"""
    return_documents: bool = False
    """the same for `documents`"""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """only the best so many; TEI has no such field, but may give it"""
    truncate: bool | None = None
    """cut texts that are longer than the model takes, unless false"""
    truncation_direction: Literal["Right", "right", "Left", "left"] = "Right"
    """which end is cut"""
    attention: AttentionRequest | None = None
    """a cross-encoder's attention across each pair, as of `POST /encode`; with it come the blocks from the query's
    tokens to the document's and back, and the weight that they hold"""
    head_mask: HeadMask = None
    """scores with less of some heads, as of `POST /encode`"""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.texts is None) == (self.documents is None):
            raise ValueError("expected texts (TEI's form) or documents (Infinity's)")
        return self

    def documents_given(self) -> list[str]:
        """The documents as texts."""
        return self.texts if self.texts is not None else plain_texts(self.documents or ())


class PairAttention(Attention):
    """Attention across one pair; `weights` and the rest as `POST /encode` answers them."""

    query_to_document: list[list[list[list[float]]]] | None = None
    """[layer][head][query's token][document's token], the part of `weights`"""
    document_to_query: list[list[list[list[float]]]] | None = None
    """the same the other way round"""
    query_to_document_mass: list[list[float]] | None = None
    """[layer][head]: how much weight a token of the query gives to the document, the mean over its tokens"""
    document_to_query_mass: list[list[float]] | None = None
    """the same the other way round"""


class TeiRank(AnswerModel):
    """One document, as TEI answers it."""

    index: int
    score: float
    text: str | None = None
    attention: PairAttention | None = None


class RerankResult(AnswerModel):
    """One document, as Infinity and Jina answer it."""

    index: int
    relevance_score: float
    document: str | TextObject | None = None
    """Infinity's: a text; Jina's: an object with a `text`"""
    attention: PairAttention | None = None


class RerankAnswer(AnswerModel):
    """What `documents` are answered with."""

    id: str
    object: Literal["rerank"] = "rerank"
    model: str
    created: int
    results: list[RerankResult]
    usage: dict[str, int]


def plain_texts(documents: Sequence[str | TextObject]) -> list[str]:
    """Documents as texts."""
    return [document if isinstance(document, str) else document.text for document in documents]


def ranked(scores: Float32Array, top_n: int | None) -> list[int]:
    """Indices of the best scores, best first; equal ones in their order."""
    order = np.argsort(-scores, kind="stable")
    found: list[int] = order[:top_n].tolist()
    return found


async def answer_rerank(request: Request, body: RerankRequest) -> Response:
    """Documents, best first."""
    context = context_of(request.scope)
    context.error_shape = OURS if body.texts is None else TEI
    documents = body.documents_given()
    scored = await score(
        services_of(request),
        context,
        Scoring(
            queries=[body.query],
            documents=documents,
            names=DOCUMENTS if body.texts is None else TEXTS,
            truncate="start" if body.truncation_direction.lower() == "left" else body.truncate is not False,
            raw_scores=body.raw_scores,
            attention=body.attention,
            head_mask=body.head_mask,
        ),
    )
    best = ranked(scored.scores, body.top_n)
    if body.texts is not None:
        shown = documents if body.return_text else None
        return await json_response(request, [_entry(scored, at, "score", "text", shown) for at in best], scored.encoded)
    shown = documents if body.return_documents else None
    results = [_entry(scored, at, "relevance_score", "document", shown) for at in best]
    return await json_response(request, rerank_answer(request, scored, results), scored.encoded)


class JinaRequest(RequestModel):
    """What `POST /v1/rerank` takes; other fields of its clients are ignored."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [JINA_EXAMPLE]})

    query: Annotated[str, Field(min_length=1)]
    """what the documents are compared with"""
    documents: Documents
    """texts, or objects with a `text`"""
    model: str | None = None
    """taken from clients that send one, and not looked at"""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """only the best so many"""
    return_documents: bool = True
    """answer each document's text, too"""
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    """cut documents after so many tokens"""


async def answer_jina(request: Request, body: JinaRequest) -> Response:
    """Documents, best first, as Jina and vLLM answer them."""
    documents = plain_texts(body.documents)
    wanted = Scoring(queries=[body.query], documents=documents, document_tokens=body.max_tokens_per_doc)
    scored = await score(services_of(request), context_of(request.scope), wanted)
    shown = [{"text": text} for text in documents] if body.return_documents else None
    results = [_entry(scored, at, "relevance_score", "document", shown) for at in ranked(scored.scores, body.top_n)]
    return await json_response(request, rerank_answer(request, scored, results), scored.encoded)


def rerank_answer(request: Request, scored: Scored, results: list[dict[str, Any]]) -> dict[str, Any]:
    """What stands around the results."""
    return {
        "id": context_of(request.scope).request_id,
        "object": "rerank",
        "model": scored.model,
        "created": int(time.time()),
        "results": results,
        "usage": {"prompt_tokens": scored.tokens, "total_tokens": scored.tokens},
    }


def _entry(scored: Scored, at: int, score_name: str, text_name: str, shown: Sequence[Any] | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"index": at, score_name: float(scored.scores[at])}
    if shown is not None:
        entry[text_name] = shown[at]
    if scored.attention is not None:
        entry["attention"] = scored.attention[at]
    return entry


EXAMPLE: dict[str, Any] = {
    "id": "4b8c",
    "object": "rerank",
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "created": 1_780_000_000,
    "results": [{"index": 0, "relevance_score": 0.63}, {"index": 1, "relevance_score": 0.04}],
    "usage": {"prompt_tokens": 24, "total_tokens": 24},
}
ROUTES = (
    Route(
        "POST",
        "/rerank",
        answer_rerank,
        is_queued=True,
        error_shape=RERANK,
        tag="reranking",
        summary="Order documents by a query, as TEI and Infinity",
        answer=embeddings_document(RerankAnswer | list[TeiRank], EXAMPLE),
        raises=(WrongTask,),
    ),
    Route(
        "POST",
        "/v1/rerank",
        answer_jina,
        is_queued=True,
        tag="reranking",
        summary="The same, as Jina and vLLM",
        answer=embeddings_document(RerankAnswer, EXAMPLE),
        raises=(WrongTask,),
    ),
)
