"""`POST /explain`."""

from starlette.requests import Request
from starlette.responses import Response

from service.context import context_of
from service.http.media import JSON
from service.http.pieces import respond
from service.http.route import Route, answer_document
from service.operations.explain import explain
from service.requests.explain_schemas import ExplainAnswer, ExplainedScores, ExplainRequest
from service.routes.compatible.adapter import require_task
from service.services import services_of

EXAMPLE = {
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "through": "pooling",
    "similarity": 0.80715,
    "contributions": [[0.13314, 0.02730, -0.01989], [0.02936, 0.33333, 0.01706], [-0.01580, 0.02892, 0.27373]],
    "a": {
        "tokens": ["[CLS]", "hello", "[SEP]"],
        "offsets": [[0, 0], [0, 5], [0, 0]],
        "saliency": [0.78302, 0.03669, 0.18029],
        "truncated": False,
    },
    "b": {
        "tokens": ["[CLS]", "hi", "[SEP]"],
        "offsets": [[0, 0], [0, 2], [0, 0]],
        "saliency": [0.78970, 0.02827, 0.18203],
        "truncated": False,
    },
    "usage": {"tokens": 6},
}


async def answer_explain(request: Request, body: ExplainRequest) -> Response:
    """The similarity of two texts as a sum over pairs of tokens, or a classifier's logits as a sum over tokens."""
    if body.through == "pooling":
        require_task(request, "embedding")
    return respond([await explain(services_of(request), context_of(request.scope), body)], JSON)


ROUTES = (
    Route(
        "POST",
        "/explain",
        answer_explain,
        is_queued=True,
        summary="Explain the similarity of two texts",
        answer=answer_document(ExplainAnswer | ExplainedScores, EXAMPLE),
    ),
)
