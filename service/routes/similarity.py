"""`POST /similarity`: one text against many, by the cosine or dot product of embeddings. It takes TEI's form, too."""

from typing import Self

from pydantic import model_validator
from starlette.requests import Request
from starlette.responses import Response

from service.answers.scores import compare
from service.errors import WrongTask
from service.http.route import Route
from service.inference.backend import Float32Array
from service.requests.plan import choose_prompt
from service.requests.schemas import (
    EncodeRequest,
    Item,
    ModelChoice,
    TeiTruncation,
    TextList,
    Truncation,
    Usage,
    example,
)
from service.routes.adapter import embeddings_document, json_response, require_task, run_for
from service.runner import Runner
from service.services import services_of
from service.tokenization.inputs import InputNames
from service.wire import TEI, AnswerModel, RequestModel

EXAMPLE = {
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "similarities": [0.6313],
    "usage": {"tokens": 13},
    "source": {"tokens": 6, "truncated": False},
    "items": [{"tokens": 7, "truncated": False}],
}
OURS = InputNames("targets", singles=("source",))
TEIS = InputNames("inputs.sentences", singles=("inputs.source_sentence",))


class TeiSentences(RequestModel):
    """TEI's names for source and targets."""

    source_sentence: str
    sentences: TextList


class TeiParameters(TeiTruncation, extra="ignore"):
    """TEI's options."""

    prompt_name: str | None = None


class SimilarityRequest(Truncation, ModelChoice):
    """What `POST /similarity` takes: `source` and `targets`, or TEI's `inputs`, which is answered as TEI does."""

    model_config = example(source="A cat sat there.", targets=["The cat sat on the mat."])

    source: str | None = None
    """the one text"""
    targets: TextList | None = None
    """the texts that it is compared with"""
    source_prompt_name: str | None = None
    """one of the model's prompts, put before the source; null means the model's default, if it has one"""
    target_prompt_name: str | None = None
    """the same for the targets"""
    inputs: TeiSentences | None = None
    """TEI's form; the answer is then a bare list of numbers"""
    parameters: TeiParameters | None = None
    """TEI's options, only with `inputs`"""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = {name for name in self.model_fields_set if getattr(self, name) is not None}
        if "inputs" in given:
            is_one = given <= {"inputs", "parameters", "model"}
        else:
            is_one = {"source", "targets"} <= given and "parameters" not in given
        if not is_one:
            raise ValueError("expected source and targets with their options, or inputs with theirs in parameters")
        return self


class SimilarityAnswer(AnswerModel):
    """What `POST /similarity` answers; one number a target, in their order."""

    model: str
    similarities: list[float]
    """cosines, from -1 to 1; dot products where the model is made for those"""
    usage: Usage
    source: Item
    items: list[Item]
    """what became of each target"""


async def answer_similarity(request: Request, body: SimilarityRequest) -> Response:
    """The model's own similarity of the source's embedding and each target's."""
    require_task(request, "embedding")
    runner = services_of(request).runner()
    wanted = _to_encode(body, runner)
    encoded = await run_for(request, wanted, names=OURS if body.inputs is None else TEIS)
    vectors: Float32Array = encoded.answer["embeddings"]
    similarities = compare("nd,d->n", vectors[1:], vectors[0], runner.manifest)
    if body.inputs is not None:
        return await json_response(request, similarities, encoded)
    (source, *items), named = encoded.answer["items"], {name: encoded.answer[name] for name in ("model", "usage")}
    answer = {**named, "similarities": similarities, "source": source, "items": items}
    return await json_response(request, answer, encoded)


def _to_encode(body: SimilarityRequest, runner: Runner) -> EncodeRequest:
    """Source and targets as one request: the source first, each behind its own prompt."""
    defaults = runner.manifest.defaults
    if body.inputs is not None:
        options = body.parameters or TeiParameters()
        truncate, source, targets = options.truncation(), body.inputs.source_sentence, body.inputs.sentences
        prompts = [("parameters.prompt_name", options.prompt_name)] * 2
    else:
        truncate, source, targets = body.truncate, body.source or "", body.targets or []
        prompts = [
            ("source_prompt_name", body.source_prompt_name),
            ("target_prompt_name", body.target_prompt_name),
        ]
    texts: list[str] = []
    for group, (param, name) in zip(([source], targets), prompts, strict=True):
        texts += choose_prompt(defaults, name=name, text=None, name_param=param).before(group)
    return EncodeRequest(inputs=texts, truncate=truncate, prompt="", normalize=defaults.compares_unit_vectors)


ROUTES = (
    Route(
        "POST",
        "/similarity",
        answer_similarity,
        is_queued=True,
        raises=(WrongTask,),
        body_error_shapes={"inputs": TEI},
        summary="Compare one text with many",
        answer=embeddings_document(SimilarityAnswer | list[float], EXAMPLE),
    ),
)
