"""`POST /rerank`, in TEI's form and in Infinity's, and `POST /v1/rerank`, Jina's: documents in the order of their fit.

What has `texts` is TEI's and answered with a bare list; what has `documents` is Infinity's and Jina's. Beside these
`attention` asks a cross-encoder what the two texts of each pair look at in each other.
"""

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.error_shapes import OURS, TEI
from service.errors import WrongTask
from service.http.route import Route
from service.operations.score import Scored, score
from service.requests.rerank_schemas import JinaRequest, RerankAnswer, RerankRequest, TeiRank, plain_texts
from service.requests.scoring import Scoring
from service.routes.compatible.adapter import embeddings_document, json_response
from service.services import services_of
from service.tokenization.inputs import InputNames

TEXTS, DOCUMENTS = InputNames(listed="texts"), InputNames(listed="documents")


async def answer_rerank(request: Request, body: RerankRequest) -> Response:
    """Documents, best first."""
    documents = body.documents_given()
    wanted = Scoring(
        queries=[body.query],
        documents=documents,
        names=DOCUMENTS if body.texts is None else TEXTS,
        truncate=body.truncation(),
        raw_scores=body.raw_scores,
        attention=body.attention,
        head_mask=body.head_mask,
    )
    scored = await score(services_of(request), context_of(request.scope), wanted)
    best = scored.best(body.top_n)
    if body.texts is not None:
        shown = documents if body.return_text else None
        return await json_response(request, [_entry(scored, at, "score", "text", shown) for at in best], scored.encoded)
    shown = documents if body.return_documents else None
    results = [_entry(scored, at, "relevance_score", "document", shown) for at in best]
    return await json_response(request, _rerank_answer(request, scored, results), scored.encoded)


async def answer_jina(request: Request, body: JinaRequest) -> Response:
    """Documents, best first, as Jina and vLLM answer them."""
    documents = plain_texts(body.documents)
    wanted = Scoring(queries=[body.query], documents=documents, document_tokens=body.max_tokens_per_doc)
    scored = await score(services_of(request), context_of(request.scope), wanted)
    shown = [{"text": text} for text in documents] if body.return_documents else None
    results = [_entry(scored, at, "relevance_score", "document", shown) for at in scored.best(body.top_n)]
    return await json_response(request, _rerank_answer(request, scored, results), scored.encoded)


def _rerank_answer(request: Request, scored: Scored, results: list[dict[str, Any]]) -> dict[str, Any]:
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
        error_shape=TEI,
        body_error_shapes={"documents": OURS},
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
