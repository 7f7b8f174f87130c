"""`POST /zero-shot`: which of some labels fit a text, labels that the model was not trained for."""

from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.answers.zero_shot import zero_shot_labels
from service.errors import WrongTask
from service.http.route import Route
from service.inference.backend import Float32Array
from service.operations.encode import offload
from service.requests.attention import ARRAY_FLOATS
from service.requests.zero_shot import ZeroShotAnswer, ZeroShotPlan, ZeroShotRequest
from service.routes.adapter import embeddings_document, json_response, run_for
from service.routes.predict import Prediction
from service.services import services_of
from service.wire import OURS


async def answer_zero_shot(request: Request, body: ZeroShotRequest) -> Response:
    """Labels of each text, best first, and how they were ranked."""
    services = services_of(request)
    most = services.settings.max_texts
    plan = body.resolve(most).plan(services.runner().manifest, most)
    plan.check_size(services.settings.max_embedding_bytes)
    encoded = await run_for(request, plan.request, names=plan.names, beside_bytes=plan.label_bytes)
    found = encoded.answer["embeddings" if plan.method == "cosine" else "scores"]
    cost = max(encoded.sizes.built_from, ARRAY_FLOATS * len(plan.wanted.texts))
    write = partial(_write_results, plan, found, as_objects=body.parameters is not None)
    results = await offload(write, cost)
    if body.parameters is not None:
        return await json_response(request, results[0] if isinstance(body.inputs, str) else results, encoded)
    named = {name: encoded.answer[name] for name in ("model", "usage")}
    return await json_response(request, {**named, "method": plan.method, "results": results}, encoded)


def _write_results(plan: ZeroShotPlan, found: Float32Array, *, as_objects: bool) -> list[memoryview]:
    """Each text's labels as JSON; lists of a million scores would hold the event loop even when they are freed.

    Args:
        plan: of the request.
        found: what the model answered.
        as_objects: each label with its score, as huggingface_hub wants them.
    """
    written = []
    for labels, scores in zero_shot_labels(plan, found):
        pairs = zip(labels, scores, strict=True)
        objects = [{"label": label, "score": score} for label, score in pairs] if as_objects else None
        written.append(memoryview(orjson.dumps(objects or {"labels": labels, "scores": scores})))
    return written


EXAMPLE = {
    "model": "mine",
    "method": "entailment",
    "results": [{"labels": ["animals", "weather"], "scores": [0.97, 0.03]}],
    "usage": {"tokens": 30},
}
ROUTES = (
    Route(
        "POST",
        "/zero-shot",
        answer_zero_shot,
        is_queued=True,
        tag="classification",
        error_shape=OURS,
        raises=(WrongTask,),
        summary="Labels that the model was not trained for",
        answer=embeddings_document(ZeroShotAnswer | list[Prediction] | list[list[Prediction]], EXAMPLE),
    ),
)
