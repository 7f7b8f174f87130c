"""What Python calls take: texts in whatever holds them, and options as `POST /encode` and the others name them.

A call is read as a body of JSON is, with Python's types instead of JSON's, and refused with `Invalid` as that would be.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from model.artifact import Manifest
from service.errors import Invalid, WrongTask
from service.requests.explain import ExplainRequest
from service.requests.schemas import AttentionRequest, EncodeRequest, EntityRequest, HeadMask, TextList
from service.requests.scoring import Scoring
from service.requests.zero_shot import ZeroShotRequest
from service.tokenization.inputs import Inputs, Truncate, read_inputs, read_pairs
from service.wire import RequestModel, validate

Integers = Sequence[int] | range | NDArray[np.integer[Any]]
HeadGates = Sequence[Sequence[float]] | NDArray[Any]
"""`[[layer, head, gate], ...]`."""


class AttentionOptions(TypedDict, total=False):
    """`attention` of `POST /encode`."""

    layers: Literal["all", "last"] | Integers
    heads: Literal["all"] | Integers
    queries: Literal["all", "cls"]
    reduce: Literal["none", "mean", "max", "rollout"]
    level: Literal["token", "word"]
    top_k: int | None
    exclude_special: bool
    renormalise: bool
    form: Literal["weights", "norms", "stats", "decomposition"]


class EntityOptions(TypedDict, total=False):
    """`entities` of `POST /encode`."""

    aggregation: Literal["none", "simple", "first", "average", "max"]
    ignore_labels: Sequence[str]
    overlap: int | None


class ClassifyOptions(TypedDict, total=False):
    """What `Engine.classify` takes besides its inputs."""

    raw_scores: bool
    truncate: Truncate
    pair_truncation: Literal["longest_first", "only_first", "only_second"]
    prompt_name: str | None
    prompt: str | None
    head_mask: HeadGates | None


class EncodeOptions(ClassifyOptions, total=False):
    """What `Engine.encode` takes besides, apart from what decides on the type of what it returns."""

    role: Literal["query", "document"] | None
    normalize: bool | None
    dimensions: int | None
    pool_factor: float | None
    encoding_format: Literal["float", "int8", "uint8", "binary", "ubinary"]
    long_texts: Literal["mean", "windows"] | None
    entities: EntityOptions | None


class AllEncodeOptions(EncodeOptions, total=False):
    """Every option of `Engine.encode`, those too that decide on the type of what it returns."""

    attention: AttentionOptions | None
    output: Literal["pooled", "tokens"]
    spans: Sequence[Sequence[Sequence[int]]] | None


class ExplainOptions(TypedDict, total=False):
    """What `Engine.explain` takes beside both texts."""

    through: Literal["pooling", "network"]
    similarity: Literal["cosine", "dot"]
    dimensions: int | None
    truncate: bool | Literal["start"]
    prompt_name: str | None
    prompt: str | None
    head_mask: HeadGates | None


class ExplainScoreOptions(TypedDict, total=False):
    """What `Engine.explain_score` takes besides its texts."""

    at: int
    truncate: bool | Literal["start"]


class ScoreOptions(TypedDict, total=False):
    """What `Engine.score` and `Engine.rerank` take beside queries and documents."""

    raw_scores: bool
    truncate: Truncate
    max_tokens_per_doc: int | None
    head_mask: HeadGates | None


class ScoringBody(RequestModel):
    """What scoring takes from Python, besides the queries."""

    documents: str | list[str]
    raw_scores: bool = False
    truncate: Truncate = True
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    head_mask: HeadMask = None


class ScoreBody(ScoringBody):
    """What `Engine.score` takes: a query for all documents, or one for each."""

    queries: str | list[str]


class RerankBody(ScoringBody):
    """What `Engine.rerank` takes."""

    query: str
    top_n: Annotated[int, Field(ge=1)] | None = None
    attention: AttentionRequest | None = None


class ZeroShotBody(ZeroShotRequest):
    """What `Engine.zero_shot` takes: no text, too."""

    labels_name: ClassVar[str] = "labels"
    inputs: str | list[str]
    candidate_labels: str | TextList = Field(alias="labels")


def read_call(inputs: Any, pairs: Any, options: Mapping[str, Any]) -> tuple[EncodeRequest, Inputs]:
    """What is asked for, and of what; any number of inputs or pairs, also none. Arrays have no encoding."""
    if (inputs is None) == (pairs is None):
        raise Invalid.at("inputs", "give either inputs or pairs")
    name, values = ("inputs", inputs) if pairs is None else ("pairs", pairs)
    given = _texts(values, name, or_ids=True)
    request = validate(EncodeRequest, {name: given, **_plain_options(options)})
    if request.encoding_format in {"base64", "float16"}:
        raise Invalid.at(
            "encoding_format",
            f"arrays are returned here, which have no {request.encoding_format}; leave it out, or name one of fewer "
            "bits",
        )
    if request.outputs is not None:
        raise Invalid.at("outputs", "only POST /encode answers several; leave it out")
    if request.return_tokens:
        raise Invalid.at("return_tokens", "only POST /encode answers it; leave it out")
    if given == []:
        return request, Inputs(texts=()) if pairs is None else Inputs(text_pairs=())
    if pairs is not None:
        return request, read_pairs(given, max_texts=sys.maxsize)
    if isinstance(given, list) and isinstance(given[0], list) and str in map(type, given[0]):
        raise Invalid.at("inputs[0]", "texts in a list of their own: pairs of texts are given as `pairs`")
    return request, read_inputs(given, max_texts=sys.maxsize)


def read_tokenize_call(texts: Any) -> Inputs:
    """Texts to tokenise, any number of them."""
    return Inputs(texts=_as_list(_texts(texts, "texts")))


def read_score_call(queries: Any, documents: Any, options: Mapping[str, Any]) -> Scoring:
    """Texts to score, any number of them."""
    texts = {"queries": _texts(queries, "queries"), "documents": _texts(documents, "documents")}
    call = validate(ScoreBody, {**texts, **_plain_options(options)})
    given, found = _as_list(call.queries), _as_list(call.documents)
    if len(given) not in {1, len(found)}:
        raise Invalid(
            f"queries: {len(given)} queries and {len(found)} documents: give one query, or one for each",
            param="queries",
        )
    return _as_scoring(given, call, "queries")


def read_rerank_call(query: Any, documents: Any, options: Mapping[str, Any]) -> Scoring:
    """Documents to order, any number of them."""
    texts = {"query": _as_json(query), "documents": _texts(documents, "documents")}
    call = validate(RerankBody, {**texts, **_plain_options(options)})
    return replace(_as_scoring([call.query], call, "query"), attention=call.attention, most=call.top_n)


def read_classify_call(
    inputs: Any, pairs: Any, options: Mapping[str, Any], manifest: Manifest
) -> tuple[EncodeRequest, Inputs]:
    """What a classifier is asked, scores alone; `WrongTask` of a model that is none."""
    if manifest.task != "classification":
        task = manifest.task.replace("_", "-")
        raise WrongTask(f"{manifest.model} is for {task}: only a classifier has labels of whole texts")
    request, given = read_call(inputs, pairs, options)
    if name := "output" if request.output != "pooled" else "attention" if request.attention is not None else "":
        raise Invalid.at(name, "labels alone are answered here; `encode` has the rest")
    return request, given


def read_entities_call(
    inputs: Any, truncate: Truncate | None, options: Mapping[str, Any], manifest: Manifest
) -> tuple[EncodeRequest, Inputs]:
    """What a token classifier is asked, entities alone; `WrongTask` of a model that is none."""
    if manifest.task != "token_classification":
        task = manifest.task.replace("_", "-")
        raise WrongTask(f"{manifest.model} is for {task}: only a model that labels tokens has entities")
    asked = _plain_options(options)
    validate(EntityRequest, asked)  # by the names that this call has for them
    windows: Mapping[str, Any] = {"long_texts": "windows"} if truncate is None else {"truncate": truncate}
    return read_call(inputs, None, {"entities": asked, **windows})


def read_zero_shot_call(inputs: Any, labels: Any, options: Mapping[str, Any]) -> ZeroShotRequest:
    """Texts and labels, any number of them."""
    texts = {"inputs": _texts(inputs, "inputs"), "labels": _texts(labels, "labels")}
    return validate(ZeroShotBody, {**texts, **_as_json(dict(options))})


def read_explain_call(a: str, b: str | None, options: Mapping[str, Any]) -> ExplainRequest:
    """Two texts to compare, or what a classifier reads."""
    request = validate(ExplainRequest, {"a": _as_json(a), "b": _as_json(b), **_plain_options(options)})
    for field, neutral in (("level", "token"), ("top_pairs", None)):
        if getattr(request, field) != neutral:
            raise Invalid.at(field, "an array of all pairs of tokens is returned here; leave it out")
    return request


def _as_list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _as_scoring(queries: list[str], call: ScoringBody, query_name: str) -> Scoring:
    return Scoring(
        queries,
        _as_list(call.documents),
        query_name=query_name,
        truncate=call.truncate,
        document_tokens=call.max_tokens_per_doc,
        raw_scores=call.raw_scores,
        head_mask=call.head_mask,
    )


def _texts(values: Any, name: str, *, or_ids: bool = False) -> Any:
    """What a call names as texts, as JSON would hold it.

    The first element that is no text is named; a table of missing values has some. With `or_ids` the first element says
    what all are: texts, token ids or lists of either.
    """
    texts = _as_json(_listed(values, name))
    if not isinstance(texts, list):
        if not or_ids and not isinstance(texts, str):
            raise Invalid.at(name, f"expected a text or a list of texts, got {type(texts).__name__}")
        return texts
    kind = type(texts[0]) if or_ids and texts else str
    for index, value in enumerate(texts):
        if type(value) is not kind or kind not in {str, int, list}:
            wanted = {str: "a text", int: "a token id", list: "a list"}.get(kind, "a text")
            raise Invalid.at(f"{name}[{index}]", f"expected {wanted}, got {type(value).__name__}")
    return texts


def _listed(values: Any, name: str) -> Any:
    """Generators, arrays of pyarrow, columns of pandas and polars and the like as a list.

    Bytes stay as they are: Python counts them through as numbers, but they are no token ids.
    """
    if isinstance(values, Mapping) or hasattr(values, "columns"):
        raise Invalid.at(name, f"got a {type(values).__name__}, which has columns or keys; give one of them")
    if isinstance(values, Set):
        raise Invalid.at(name, f"got a {type(values).__name__}, which has no order; give a list")
    for method in ("to_pylist", "to_list"):  # pyarrow; pandas and polars
        if hasattr(values, method):
            return getattr(values, method)()
    if isinstance(values, str | bytes | bytearray | memoryview | np.ndarray) or not isinstance(values, Iterable):
        return values
    return list(values)


def _plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    if "model" in options:  # a field of bodies
        raise Invalid.at("model", "an engine has one")
    return {key: _as_json(_with_whole_places(value) if key == "head_mask" else value) for key, value in options.items()}


def _with_whole_places(value: Any) -> Any:
    """Rows of [layer, head, gate]; an array with gates between 0 and 1 holds layers and heads as floats too."""
    if not (isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind == "f"):
        return value
    return [[int(part) if part.is_integer() else part for part in row[:2]] + row[2:] for row in value.tolist()]


def _as_json(value: Any) -> Any:
    """NumPy's arrays and numbers, tuples, ranges and kinds of `str` as what they hold; anything else as it is."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _as_json(held) for key, held in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, list | tuple | range) else value
