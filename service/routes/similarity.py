"""`POST /similarity`: one text against many, by the cosine of their embeddings. TEI's form of it is taken too."""

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from service.error_shapes import TEI
from service.http.route import Route
from service.inference.backend import Float32Array
from service.operations.encode import EncodeResult
from service.requests.prompts import choose_prompt
from service.requests.schemas import EncodeRequest, Item, Usage
from service.routes.compatible.adapter import embeddings_document, json_response, require_task, run_for
from service.runner import Runner
from service.services import services_of
from service.tokenization.inputs import InputNames
from service.wire import AnswerModel, RequestModel

EXAMPLE = {
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "similarities": [0.6313],
    "usage": {"tokens": 13},
    "source": {"tokens": 6, "truncated": False},
    "items": [{"tokens": 7, "truncated": False}],
}
Targets = Annotated[
    list[str], Field(min_length=1, fail_fast=True)
]  # fail_fast: a million validation problems would take a gigabyte
OURS = InputNames("targets", singles=("source",))
TEIS = InputNames("inputs.sentences", singles=("inputs.source_sentence",))


class TeiSentences(RequestModel):
    """TEI's names for source and targets."""

    source_sentence: str
    sentences: Targets


class TeiParameters(RequestModel):
    """TEI's options."""

    model_config = ConfigDict(extra="ignore")

    truncate: bool | None = None
    truncation_direction: Literal["Right", "right"] = "Right"
    prompt_name: str | None = None


class SimilarityRequest(RequestModel):
    """What `POST /similarity` takes: `source` and `targets`, or TEI's `inputs`, which is answered as TEI does."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["source", "targets"]}, {"required": ["inputs"]}],
            "examples": [{"source": "A cat sat there.", "targets": ["The cat sat on the mat."]}],
        }
    )

    source: str | None = None
    """the one text"""
    targets: Targets | None = None
    """the texts that it is compared with"""
    truncate: bool = True
    """cut texts that are longer than the model takes; false refuses them"""
    source_prompt_name: str | None = None
    """one of the model's prompts, put before the source; null takes the model's default, where it has one"""
    target_prompt_name: str | None = None
    """the same for the targets"""
    inputs: TeiSentences | None = None
    """TEI's form; the answer is then a bare list of numbers"""
    parameters: TeiParameters | None = None
    """TEI's options, only with `inputs`"""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        ours = (self.source is not None) + (self.targets is not None)
        if ours != (0 if self.inputs is not None else 2):
            raise ValueError("expected source and targets, or inputs with source_sentence and sentences")
        if self.inputs is None and self.parameters is not None:
            raise ValueError("parameters are for inputs; beside source and targets give the options themselves")
        others = sorted(self.model_fields_set - {"inputs", "parameters", "source", "targets"})
        if self.inputs is not None and others:
            raise ValueError(f"{', '.join(others)}: not beside inputs, whose options stand in parameters")
        return self


class SimilarityAnswer(AnswerModel):
    """What `POST /similarity` answers; one number a target, in their order."""

    model: str
    similarities: list[float]
    """cosines, from -1 to 1"""
    usage: Usage
    source: Item
    items: list[Item]
    """what became of each target"""


async def answer_similarity(request: Request, body: SimilarityRequest) -> Response:
    """The cosine of the source's embedding and each target's."""
    require_task(request, "embedding")
    wanted = _to_encode(body, services_of(request).readiness.runner())
    encoded = await run_for(request, wanted, names=OURS if body.inputs is None else TEIS)
    similarities = _cosines(encoded.answer["embeddings"])
    answer = similarities if body.inputs is not None else _full_answer(encoded, similarities)
    return await json_response(request, answer, encoded)


def _to_encode(body: SimilarityRequest, runner: Runner) -> EncodeRequest:
    """Source and targets as one request: the source first, each behind its own prompt."""
    defaults = runner.manifest.defaults
    if body.inputs is not None:
        options = body.parameters or TeiParameters()
        source, targets, truncate = body.inputs.source_sentence, body.inputs.sentences, options.truncate is not False
        names = (options.prompt_name, options.prompt_name)
        params = ("parameters.prompt_name", "parameters.prompt_name")
    else:
        source, targets, truncate = body.source or "", body.targets or [], body.truncate
        names = (body.source_prompt_name, body.target_prompt_name)
        params = ("source_prompt_name", "target_prompt_name")
    texts: list[str] = []
    for group, name, param in zip(([source], targets), names, params, strict=True):
        prompt = choose_prompt(defaults, name=name, text=None, name_param=param)
        texts += group if prompt is None else prompt.before(group)
    return EncodeRequest(inputs=texts, truncate=truncate, prompt="")


def _cosines(vectors: Float32Array) -> Float32Array:
    """[1 + n, D], of length 1 -> [n]; rounding leaves no cosine beyond 1."""
    cosines: Float32Array = np.einsum("nd,d->n", vectors[1:], vectors[0]).clip(-1, 1)
    return cosines


def _full_answer(encoded: EncodeResult, similarities: Float32Array) -> dict[str, Any]:
    answer = encoded.answer
    return {
        "model": answer["model"],
        "similarities": similarities,
        "usage": answer["usage"],
        "source": answer["items"][0],
        "items": answer["items"][1:],
    }


ROUTES = (
    Route(
        "POST",
        "/similarity",
        answer_similarity,
        is_queued=True,
        body_error_shapes={"inputs": TEI},
        summary="Compare one text with many",
        answer=embeddings_document(SimilarityAnswer | list[float], EXAMPLE),
    ),
)
