"""OpenAI's `POST /v1/embeddings` and `GET /v1/models`, and Infinity's, which has them without the prefix.

A model that is alone answers to any `model`, and the answer says which one it was: clients send placeholders such as
`text-embedding-3-small`, often ones that their users never see. Of several the name chooses one. Token ids are OpenAI's
tokenizer's unless someone took care; those are refused, because they would give a vector without meaning. TEI answers
`/embeddings` too. Usage is in tokens, where Infinity counts characters unless told otherwise.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from model.artifact import Manifest
from service.errors import Invalid, ModelNotFound, NotReady, WrongTask
from service.http.response import JSON
from service.http.route import Route, answer_document
from service.operations.encode import offload
from service.requests.plan import is_quantized
from service.requests.roles import prompt_of_kind
from service.requests.schemas import EncodeRequest, Inputs, ModelChoice, PromptOptions, VectorFormat, example
from service.routes.adapter import (
    check_model,
    embeddings_document,
    json_response,
    list_vectors,
    model_in_path,
    require_task,
    run_for,
)
from service.runner import Runner
from service.services import services_of
from service.tokenization.inputs import CUTS, Cut, InputNames, Truncate
from service.wire import JINA, AnswerModel

TAG = "OpenAI"
EXAMPLE = {
    "id": "4b8c",
    "object": "list",
    "created": 1_780_000_000,
    "data": [{"object": "embedding", "index": 0, "embedding": [0.0312, -0.0519, 0.0447]}],
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "usage": {"prompt_tokens": 7, "total_tokens": 7},
}
MODEL_EXAMPLE = {
    "id": "sentence-transformers/all-MiniLM-L6-v2",
    "object": "model",
    "created": 1792000000,
    "owned_by": "polyhead",
}


class EmbeddingsRequest(PromptOptions, ModelChoice):
    """OpenAI's request, with fields of ours and of others for clients that can send more (`extra_body`)."""

    model_config = example(model="any", input="The cat sat on the mat.")

    input: Inputs
    """a text, a list of texts, a list of token ids, or a list of lists of token ids: this model's, with its special
    tokens"""
    encoding_format: Literal["float", "base64", VectorFormat] | None = "float"
    """`"base64"`: little-endian float32; null is `"float"`, for clients that write what they were not told; `"int8"`,
    `"uint8"`, `"binary"` and `"ubinary"` are ours: whole numbers, as `POST /encode` answers them"""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """truncate vectors to N dimensions, and normalise again"""
    output_dimension: Annotated[int, Field(ge=1)] | None = None
    """the same as Voyage names it"""
    output_dtype: Literal["float", VectorFormat] | None = None
    """Voyage's name of the forms with fewer bits; they are whole numbers, whatever `encoding_format` says"""
    user: str | None = None
    """not used, not kept"""
    truncate: bool | Cut | None = True
    """cut texts that are longer than the model takes, and count them in `X-Truncated-Inputs`; false refuses them;
    `"NONE"`, `"START"` and `"END"` as NVIDIA's clients send it"""
    truncation: bool | None = None
    """the same as Voyage names it"""
    drop_params: bool | None = None
    """LiteLLM's, which RAGFlow sends to every server; not used"""
    input_type: (
        Literal["query", "document", "passage", "search_query", "search_document", "classification", "clustering"]
        | None
    ) = None
    """whether the texts are queries or documents, as Voyage, NVIDIA and Cohere name it: the model's prompt for them,
    if it has one; others get the model's default prompt"""
    task: Literal["retrieval.query", "retrieval.passage", "text-matching", "classification", "separation"] | None = None
    """the same as Jina names it; other tasks than retrieval get the model's default prompt; of a model with an adapter
    it has to be the adapter's"""
    late_chunking: Literal[False] | None = None
    """Jina's; every text is read by itself"""
    embedding_type: Literal["float", "base64", VectorFormat] | None = None
    """Jina's name of `encoding_format`"""
    normalized: bool | None = None
    """Jina's name of `normalize` of `POST /encode`"""

    def cut(self) -> Truncate:
        """What happens to texts that are too long."""
        if isinstance(self.truncate, str):
            return CUTS[self.truncate]
        return self.truncate is not False and self.truncation is not False


class Embedding(AnswerModel):
    """One input's vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | list[int] | str


class EmbeddingsUsage(AnswerModel):
    """What a request cost."""

    prompt_tokens: int
    """tokens of all inputs, special tokens included"""
    total_tokens: int
    """the same"""


class EmbeddingsAnswer(AnswerModel):
    """OpenAI's answer."""

    id: str
    """the request's; Mistral's client wants one"""
    object: Literal["list"]
    created: int
    """now, seconds since 1970; vLLM and Infinity answer it"""
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


class Model(AnswerModel):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    """when the artifact was written, seconds since 1970"""
    owned_by: str


class ModelList(AnswerModel):
    """The models that are served."""

    object: Literal["list"]
    data: list[Model]


async def answer_embeddings(request: Request, body: EmbeddingsRequest) -> Response:
    """One vector an input, in their order."""
    runner = services_of(request).runner()
    check_token_ids(body.input, runner)
    form = body.output_dtype if is_quantized(body.output_dtype) else body.embedding_type or body.encoding_format
    wanted = EncodeRequest(
        inputs=body.input,
        normalize=body.normalized,
        truncate=body.cut(),
        dimensions=body.dimensions or body.output_dimension or None,  # Infinity's 0 is for all
        prompt_name=_prompt_name(body, runner.manifest),
        prompt=body.prompt,
        encoding_format=form if is_quantized(form) else "float",
    )
    require_task(request, "embedding")
    encoded = await run_for(request, wanted, names=InputNames("input"))
    write = partial(list_vectors, request, encoded, encoded.answer["embeddings"], "embedding", form)
    return await json_response(request, await offload(write, encoded.sizes.floats), encoded)


def _prompt_name(body: EmbeddingsRequest, manifest: Manifest) -> str | None:
    """The prompt that the request names, or that is for the kind of its texts."""
    kinds = {"input_type": body.input_type, "task": body.task}
    given = [name for name, kind in kinds.items() if kind is not None]
    if not given:
        return body.prompt_name
    if len(given) > 1 or body.prompt is not None or body.prompt_name is not None:
        raise Invalid.at(given[0], "it chooses the prompt; leave the other fields that do so out")
    adapter = manifest.source.adapter
    if body.task is not None and adapter is not None and body.task != adapter:
        raise Invalid.at(
            "task", f"{manifest.model} is served here with its adapter for {adapter}; an artifact holds one"
        )
    return prompt_of_kind(kinds[given[0]], manifest)


async def answer_models(request: Request) -> Response:
    """Every model that can answer."""
    return _list_models(request, describe_model)


async def answer_model(request: Request) -> Response:
    """A model, by its name."""
    name = check_model(request)
    return Response(orjson.dumps(describe_model(name, services_of(request).runner())), media_type=JSON)


def _list_models(request: Request, describe: Callable[[str, Runner], dict[str, Any]]) -> Response:
    """The models that can answer; raises NotReady where none can yet."""
    models = services_of(request).models
    models.check_loaded()
    data = [describe(model.name, model.loaded) for model in models if model.loaded is not None]
    return Response(orjson.dumps({"object": "list", "data": data}), media_type=JSON)


def describe_model(name: str, runner: Runner) -> dict[str, Any]:
    """The model as OpenAI lists one."""
    return {"id": name, "object": "model", "created": int(runner.written), "owned_by": "polyhead"}


def check_token_ids(value: Any, runner: Runner) -> None:
    """Refuses token ids without the special tokens that this model's tokenizer puts around a text.

    `langchain-openai` sends ids of `cl100k_base` unless told otherwise. Many are words of this vocabulary too, so they
    would be encoded to something else without a sign. What is no list of token ids is checked where all inputs are.
    """
    rows = value if type(value) is list and value and type(value[0]) is list else [value]
    first, last = runner.tokenizer.special_ends
    for index, row in enumerate(rows):
        if type(row) is not list or not row or type(row[0]) is not int:
            return
        if (first is not None and row[0] != first) or (last is not None and row[-1] != last):
            raise Invalid.at(
                f"input[{index}]",
                f"these token ids are not this model's: its own begin with {first} and end with {last} (POST "
                "/tokenize makes them). Send texts; in LangChain set check_embedding_ctx_length=False",
            )


INFINITY_TAG = "Infinity"


class InfinityRequest(EmbeddingsRequest, extra="ignore"):
    """Infinity's request: OpenAI's, fields that neither knows ignored, as Infinity does."""

    model_config = example(input="The cat sat on the mat.")

    dimensions: Annotated[int, Field(ge=0)] | None = 0
    """truncate vectors to N dimensions, and normalise again; 0 keeps all"""
    modality: Literal["text"] = "text"
    """only texts are encoded here"""


class InfinityModel(Model):
    """The model that is served, as Infinity describes one."""

    owned_by: Literal["infinity"]
    backend: str
    capabilities: list[str]
    stats: dict[str, float]
    """`queue_fraction`: tokens waiting, of those that may; `queue_absolute`: texts waiting"""


class InfinityModels(AnswerModel):
    """The models that are served."""

    object: Literal["list"]
    data: list[InfinityModel]


async def answer_infinity(request: Request, body: InfinityRequest) -> Response:
    """One vector an input, in their order."""
    return await answer_embeddings(request, body)


async def answer_infinity_models(request: Request) -> Response:
    """The models with the states of their queues."""
    most = services_of(request).settings.max_queue_tokens

    def describe(name: str, runner: Runner) -> dict[str, Any]:
        queued = runner.batcher
        return {
            **describe_model(name, runner),
            "owned_by": "infinity",  # its client knows no other
            "backend": runner.runtime.engine,
            "capabilities": _capabilities(runner.manifest),
            "stats": {
                "queue_fraction": queued.queued_tokens / most,
                "queue_absolute": float(queued.queued_texts),
            },
        }

    return _list_models(request, describe)


def _capabilities(manifest: Manifest) -> list[str]:
    """What Infinity's routes answer for this model."""
    if manifest.task == "classification":
        return ["classify"] if len(manifest.labels) != 1 or not manifest.pairs else ["classify", "rerank"]
    return {"embedding": ["embed", "rerank"], "multi_vector": ["rerank"]}.get(manifest.task, [])


MODELS_EXAMPLE = {
    **MODEL_EXAMPLE,
    "owned_by": "infinity",
    "backend": "onnxruntime",
    "capabilities": ["embed"],
    "stats": {"queue_fraction": 0.0, "queue_absolute": 0.0},
}


_openai = partial(Route, tag=TAG)
_infinity = partial(Route, tag=INFINITY_TAG)
EMBEDDINGS = embeddings_document(EmbeddingsAnswer, EXAMPLE)

ROUTES = (
    _openai(
        "POST",
        "/v1/embeddings",
        answer_embeddings,
        is_queued=True,
        raises=(WrongTask,),
        error_shape=JINA,  # OpenAI's, and `detail` for Jina's clients
        summary="Embeddings, as OpenAI's",
        answer=EMBEDDINGS,
    ),
    _openai(
        "GET",
        "/v1/models",
        answer_models,
        summary="The models served, as OpenAI's",
        answer=answer_document(ModelList, {"object": "list", "data": [MODEL_EXAMPLE]}),
        raises=(NotReady,),
    ),
    _openai(
        "GET",
        "/v1/models/{model:path}",
        answer_model,
        summary="One model, as OpenAI's",
        answer=answer_document(Model, MODEL_EXAMPLE),
        raises=(ModelNotFound, NotReady),
        parameters=(model_in_path("may hold slashes"),),
    ),
    _infinity(
        "POST",
        "/embeddings",
        answer_infinity,
        is_queued=True,
        raises=(WrongTask,),
        summary="Embeddings, as Infinity's",
        answer=EMBEDDINGS,
    ),
    _infinity(
        "GET",
        "/models",
        answer_infinity_models,
        summary="The models served, as Infinity's",
        answer=answer_document(InfinityModels, {"object": "list", "data": [MODELS_EXAMPLE]}),
        raises=(NotReady,),
    ),
)
