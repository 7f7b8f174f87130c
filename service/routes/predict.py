"""`POST /predict` (TEI's) and `POST /classify` (Infinity's): a classifier's labels, each with a score, best first.

`POST /zero-shot`: which of some labels fit a text, labels that the model was not trained for.

Of a token classifier `POST /predict` answers entities, in the shape of the pipeline of `transformers`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from model.config_parts import ScoreActivation
from service.answers.scores import activate, labelled, zero_shot_labels
from service.errors import Invalid, WrongTask
from service.http.route import Route
from service.inference.backend import Float32Array
from service.operations.encode import EncodeResult, offload
from service.requests.attention import ARRAY_FLOATS
from service.requests.schemas import (
    Aggregation,
    EncodeRequest,
    Entity,
    EntityRequest,
    LabelList,
    ModelChoice,
    TeiTruncation,
    TextList,
    example,
    refuse_beside,
)
from service.requests.zero_shot import ZeroShotAnswer, ZeroShotPlan, ZeroShotRequest, label_bytes
from service.routes.adapter import embeddings_document, json_response, require_task, run_for, stamped_answer
from service.services import services_of
from service.tokenization.inputs import InputNames
from service.wire import OURS, TEI, AnswerModel, RequestModel

_Rows = Annotated[list[TextList], Field(min_length=1, fail_fast=True)]
PredictInputs = Annotated[str | TextList | _Rows, Field(union_mode="left_to_right")]
TEXTS = InputNames()  # pairs too are `inputs` here
SHAPES = 'expected a text, a pair ["a", "b"], or a list of single texts [["a"], ...] or of pairs [["a", "b"], ...]'


class PredictParameters(RequestModel, extra="ignore"):
    """What huggingface_hub sends; other parameters are ignored."""

    function_to_apply: Literal["none", "sigmoid", "softmax"] | None = None
    """of a classifier of whole texts: instead of the model's own function from logits to scores"""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """only the best N labels of each text"""
    aggregation_strategy: Aggregation | None = None
    ignore_labels: LabelList | None = None
    stride: Annotated[int, Field(ge=0)] | None = None


class PredictRequest(TeiTruncation, ModelChoice, extra="ignore"):
    """What `POST /predict` takes; fields that TEI does not know are ignored, as there."""

    model_config = example(inputs="I like it.")

    inputs: PredictInputs
    """a text; `["a"]`, the same; `["a", "b"]`, one pair; `[["a"], ["b"]]`, texts; or `[["a", "b"], ...]`, pairs. With
    `level` `"tokens"` a text or a list of texts"""
    raw_scores: bool = False
    """logits instead of probabilities"""
    level: Literal["text", "tokens"] | None = None
    """`"tokens"`: entities, of a model that labels tokens; null for what the model does. A longer text than the model
    takes is then read in windows that overlap, unless `truncate` is true, which cuts it, or false, which refuses it"""
    aggregation: Aggregation | None = None
    """how tokens become entities, `"simple"` by default; as `entities.aggregation` of `POST /encode`"""
    ignore_labels: LabelList | None = None
    """labels that are left out, `["O"]` by default"""
    overlap: Annotated[int, Field(ge=0)] | None = None
    """tokens that neighbouring windows of a long text share; with `truncate` there are none"""
    parameters: PredictParameters | None = None
    """the same by the names of huggingface_hub; the labels of one text then come in a list of one"""

    def entities(self) -> EntityRequest:
        """How tokens are grouped."""
        theirs = self.parameters or PredictParameters()
        given: dict[str, Any] = {
            "aggregation": self.aggregation or theirs.aggregation_strategy,
            "ignore_labels": theirs.ignore_labels if self.ignore_labels is None else self.ignore_labels,
            "overlap": theirs.stride if self.overlap is None else self.overlap,
        }
        return EntityRequest(**{name: value for name, value in given.items() if value is not None})


class ClassifyRequest(ModelChoice, extra="ignore"):
    """What `POST /classify` takes, as Infinity; other fields are ignored."""

    model_config = example(input=["I like it."])

    input: str | TextList
    """a text or a list of texts"""
    raw_scores: bool = False
    """logits instead of probabilities"""


class Prediction(AnswerModel):
    """One label."""

    label: str
    score: float


class ClassifyAnswer(AnswerModel):
    """What `POST /classify` answers; one list of labels a text, best first."""

    id: str
    object: Literal["classify"]
    created: int
    data: list[list[Prediction]]
    model: str
    usage: dict[str, int]


PredictAnswer = list[Prediction] | list[list[Prediction]] | list[Entity] | list[list[Entity]]


async def answer_predict(request: Request, body: PredictRequest) -> Response:
    """Labels, best first: of one input, or one list an input; or entities."""
    task = services_of(request).runner().manifest.task
    if body.level == "tokens" or (body.level is None and task == "token_classification"):
        return await _answer_entities(request, body)
    require_task(request, "classification")
    refuse_beside(body, ("aggregation", "ignore_labels", "overlap"), "a model that labels whole texts")
    given, count, is_batch = _read(body.inputs)
    parameters = body.parameters or PredictParameters()
    function = parameters.function_to_apply
    raw_scores = body.raw_scores or function is not None
    wanted = EncodeRequest(**given, raw_scores=raw_scores, truncate=body.truncation())
    applied: ScoreActivation = "identity" if function is None or function == "none" else function
    encoded, found = await _classify(request, wanted, count, TEXTS, applied=applied, top_k=parameters.top_k)
    # Clients that send `parameters` return the first list of the answer, as Hugging Face's own API has it.
    return await json_response(request, found if is_batch or body.parameters is not None else found[0], encoded)


async def _answer_entities(request: Request, body: PredictRequest) -> Response:
    require_task(request, "token_classification")
    inputs, is_batch = _read_texts(body.inputs)
    wanted = EncodeRequest(
        inputs=inputs,
        raw_scores=body.raw_scores,
        truncate=body.truncation(),
        long_texts="windows" if body.truncate is None else None,
        entities=body.entities(),
    )
    encoded = await run_for(request, wanted)
    found = encoded.answer["entities"]
    return await json_response(request, found if is_batch else found[0], encoded)


async def answer_classify(request: Request, body: ClassifyRequest) -> Response:
    """One list of labels a text."""
    require_task(request, "classification")
    inputs = [body.input] if isinstance(body.input, str) else body.input
    wanted = EncodeRequest(inputs=inputs, raw_scores=body.raw_scores)
    encoded, predictions = await _classify(request, wanted, len(inputs), InputNames(listed="input"))
    return await json_response(request, stamped_answer(request, encoded, "classify", data=predictions), encoded)


async def _classify(
    request: Request,
    wanted: EncodeRequest,
    count: int,
    names: InputNames,
    *,
    applied: ScoreActivation = "identity",
    top_k: int | None = None,
) -> tuple[EncodeResult, list[memoryview]]:
    """What is asked for of `count` inputs, and labels with scores, best first, of each; `applied` is to the scores."""
    services = services_of(request)
    labels, most = services.runner().manifest.labels, services.settings.max_embedding_bytes
    size = label_bytes(labels, count, most, param=names.field)
    encoded = await run_for(request, wanted, names=names, beside_bytes=size)
    write = partial(_write_predictions, encoded.answer["scores"], labels, applied, top_k)
    return encoded, await offload(write, max(encoded.sizes.built_from, ARRAY_FLOATS * count))


def _write_predictions(
    scores: Float32Array, labels: Sequence[str], applied: ScoreActivation, top_k: int | None
) -> list[memoryview]:
    """Each input's labels as JSON: objects of all of them would take several times the memory."""
    return [memoryview(orjson.dumps(labelled(row, labels, top_k))) for row in activate(scores, applied)]


def _read_texts(inputs: PredictInputs) -> tuple[list[str], bool]:
    """Single texts, and whether they came as a list."""
    if isinstance(inputs, str):
        return [inputs], False
    rows = [[row] if isinstance(row, str) else row for row in inputs]
    if any(len(row) != 1 for row in rows):
        raise Invalid.at("inputs", 'expected a text, or a list of texts ["a", "b"] or [["a"], ["b"]]')
    return [row[0] for row in rows], True


def _read(inputs: PredictInputs) -> tuple[dict[str, Any], int, bool]:
    """`inputs` or `pairs` of a request to encode, how many, and whether they came as a list."""
    is_batch = not isinstance(inputs, str) and isinstance(inputs[0], list)
    rows: Any = inputs if is_batch else [[inputs] if isinstance(inputs, str) else inputs]
    sizes = {len(row) for row in rows}
    if sizes == {1}:
        return {"inputs": [row[0] for row in rows]}, len(rows), is_batch
    if sizes == {2}:
        return {"pairs": rows}, len(rows), is_batch
    raise Invalid.at("inputs", SHAPES)


PREDICTIONS = [{"score": 0.98, "label": "positive"}, {"score": 0.02, "label": "negative"}]
CLASSIFY_EXAMPLE = {
    "id": "4b8c",
    "object": "classify",
    "created": 1_780_000_000,
    "data": [PREDICTIONS],
    "model": "mine",
    "usage": {"prompt_tokens": 6, "total_tokens": 6},
}
_post = partial(Route, "POST", is_queued=True, tag="classification", raises=(WrongTask,))


async def answer_zero_shot(request: Request, body: ZeroShotRequest) -> Response:
    """Labels of each text, best first, and how they were ranked."""
    services = services_of(request)
    most = services.settings.max_texts
    plan = body.plan(services.runner().manifest, most)
    texts, longest = len(plan.texts), services.settings.max_embedding_bytes
    size = label_bytes(plan.labels, texts, longest, param="candidate_labels")
    encoded = await run_for(request, plan.request, names=plan.names, beside_bytes=size)
    method, found_in = ("cosine", "embeddings") if plan.entailment is None else ("entailment", "scores")
    write = partial(_write_results, plan, encoded.answer[found_in], as_objects=body.parameters is not None)
    results = await offload(write, max(encoded.sizes.built_from, ARRAY_FLOATS * texts))
    if body.parameters is not None:
        return await json_response(request, results[0] if isinstance(body.inputs, str) else results, encoded)
    named = {name: encoded.answer[name] for name in ("model", "usage")}
    return await json_response(request, {**named, "method": method, "results": results}, encoded)


def _write_results(plan: ZeroShotPlan, found: Float32Array, *, as_objects: bool) -> list[memoryview]:
    """Each text's labels as JSON; lists of a million scores would hold the event loop even when they are freed."""
    written = []
    for labels, scores in zero_shot_labels(plan, found):
        pairs = zip(labels, scores, strict=True)
        objects = [{"label": label, "score": score} for label, score in pairs] if as_objects else None
        written.append(memoryview(orjson.dumps(objects or {"labels": labels, "scores": scores})))
    return written


ZERO_SHOT_EXAMPLE = {
    "model": "mine",
    "method": "entailment",
    "results": [{"labels": ["animals", "weather"], "scores": [0.97, 0.03]}],
    "usage": {"tokens": 30},
}
ROUTES = (
    _post(
        "/predict",
        answer_predict,
        error_shape=TEI,
        summary="A classifier's labels, as TEI; or the entities of a text",
        answer=embeddings_document(PredictAnswer, PREDICTIONS),
    ),
    _post(
        "/classify",
        answer_classify,
        summary="The same, as Infinity",
        answer=embeddings_document(ClassifyAnswer, CLASSIFY_EXAMPLE),
    ),
    _post(
        "/zero-shot",
        answer_zero_shot,
        error_shape=OURS,
        summary="Labels that the model was not trained for",
        answer=embeddings_document(ZeroShotAnswer | list[Prediction] | list[list[Prediction]], ZERO_SHOT_EXAMPLE),
    ),
)
