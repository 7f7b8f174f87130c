"""`POST /predict` (TEI's) and `POST /classify` (Infinity's): a classifier's labels, each with a score, best first."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from service.answers.scores import labelled
from service.error_shapes import TEI
from service.errors import Invalid, WrongTask
from service.http.route import Route
from service.operations.encode import EncodeResult
from service.requests.schemas import EncodeRequest
from service.routes.compatible.adapter import embeddings_document, json_response, require_task, run_for
from service.tokenization.inputs import InputNames
from service.wire import AnswerModel, RequestModel

_TEXT = {"type": "string"}
_ONE = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 1}
_PAIR = {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2}
PredictInputs = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [_TEXT, _PAIR, *({"type": "array", "items": item, "minItems": 1} for item in (_ONE, _PAIR))]}
    ),
]
SHAPES = 'expected a text, a pair ["a", "b"], or a list of single texts [["a"], ...] or of pairs [["a", "b"], ...]'


class PredictRequest(RequestModel):
    """What `POST /predict` takes; fields that TEI does not know are ignored, as there."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [{"inputs": "I like it."}]})

    inputs: PredictInputs
    """a text; `["a", "b"]`, one pair; `[["a"], ["b"]]`, texts; or `[["a", "b"], ...]`, pairs"""
    raw_scores: bool = False
    """logits in place of probabilities"""
    truncate: bool | None = None
    """cut texts that are longer than the model takes, unless false"""
    truncation_direction: Literal["Right", "right", "Left", "left"] = "Right"
    """which end is cut"""


class ClassifyRequest(RequestModel):
    """What `POST /classify` takes, as Infinity; other fields are ignored."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [{"input": ["I like it."]}]})

    input: str | Annotated[list[str], Field(min_length=1)]
    """a text or a list of texts"""
    model: str | None = None
    """taken from clients that send one, and not looked at"""
    raw_scores: bool = False
    """logits in place of probabilities"""


class Prediction(AnswerModel):
    """One label."""

    label: str
    score: float


class ClassifyAnswer(AnswerModel):
    """What `POST /classify` answers; one list of labels a text, best first."""

    object: Literal["classify"]
    data: list[list[Prediction]]
    model: str
    usage: dict[str, int]


async def answer_predict(request: Request, body: PredictRequest) -> Response:
    """Labels, best first: of one input, or one list an input."""
    require_task(request, "classification")
    inputs, pairs, is_batch = _read(body.inputs)
    wanted = EncodeRequest(
        inputs=inputs,
        pairs=pairs,
        raw_scores=body.raw_scores,
        truncate="start" if body.truncation_direction.lower() == "left" else body.truncate is not False,
    )
    encoded = await run_for(request, wanted)
    found = predictions(encoded)
    return await json_response(request, found if is_batch else found[0], encoded)


async def answer_classify(request: Request, body: ClassifyRequest) -> Response:
    """One list of labels a text."""
    require_task(request, "classification")
    inputs = [body.input] if isinstance(body.input, str) else body.input
    wanted = EncodeRequest(inputs=inputs, raw_scores=body.raw_scores)
    encoded = await run_for(request, wanted, names=InputNames(listed="input"))
    tokens = encoded.answer["usage"]["tokens"]
    answer = {
        "object": "classify",
        "data": predictions(encoded),
        "model": encoded.answer["model"],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return await json_response(request, answer, encoded)


def predictions(encoded: EncodeResult) -> list[list[dict[str, Any]]]:
    """Every label with its score, best first, of each input."""
    return labelled(encoded.answer["scores"], encoded.answer["labels"])


def _read(inputs: Any) -> tuple[list[str] | None, list[list[str]] | None, bool]:
    """Single texts or pairs, the other is None, and whether they came as a list."""
    if isinstance(inputs, str):
        return [inputs], None, False
    if not isinstance(inputs, list) or not inputs:
        raise Invalid(f"inputs: {SHAPES}", param="inputs")
    if all(isinstance(text, str) for text in inputs):
        if len(inputs) != 2:
            raise Invalid(f"inputs: {SHAPES}; {len(inputs)} texts are no pair", param="inputs")
        return None, [inputs], False
    if all(isinstance(row, list) and all(isinstance(text, str) for text in row) for row in inputs):
        sizes = {len(row) for row in inputs}
        if sizes == {1}:
            return [row[0] for row in inputs], None, True
        if sizes == {2}:
            return None, inputs, True
    raise Invalid(f"inputs: {SHAPES}; all of one kind", param="inputs")


PREDICTIONS = [{"score": 0.98, "label": "positive"}, {"score": 0.02, "label": "negative"}]
ROUTES = (
    Route(
        "POST",
        "/predict",
        answer_predict,
        is_queued=True,
        error_shape=TEI,
        tag="classification",
        summary="A classifier's labels, as TEI",
        answer=embeddings_document(list[Prediction] | list[list[Prediction]], PREDICTIONS),
        raises=(WrongTask,),
    ),
    Route(
        "POST",
        "/classify",
        answer_classify,
        is_queued=True,
        tag="classification",
        summary="The same, as Infinity",
        answer=embeddings_document(
            ClassifyAnswer,
            {
                "object": "classify",
                "data": [PREDICTIONS],
                "model": "mine",
                "usage": {"prompt_tokens": 6, "total_tokens": 6},
            },
        ),
        raises=(WrongTask,),
    ),
)
