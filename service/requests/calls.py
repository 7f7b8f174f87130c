"""A call from Python read as the body of `POST /encode` or `/explain` is, with Python's types in place of JSON's."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from model.manifest import Manifest
from service.errors import Invalid, WrongTask
from service.http.validation import validate_value
from service.requests.attention_schemas import AttentionRequest
from service.requests.explain_schemas import ExplainRequest
from service.requests.head_mask import HeadMask
from service.requests.schemas import EncodeRequest
from service.requests.scoring import Scoring
from service.tokenization.inputs import Inputs, read_inputs, read_pairs
from service.tokenization.tokenize import Truncate
from service.wire import RequestModel


class ScoringOptions(RequestModel):
    """What scoring takes from Python, beside the queries."""

    documents: str | list[str]
    raw_scores: bool = False
    truncate: Truncate = True
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    head_mask: HeadMask = None


class ScoreOptions(ScoringOptions):
    """What `Engine.score` takes: a query for all documents, or one for each."""

    queries: str | list[str]


class RerankOptions(ScoringOptions):
    """What `Engine.rerank` takes."""

    query: str
    top_n: Annotated[int, Field(ge=1)] | None = None
    attention: AttentionRequest | None = None


def read_call(inputs: Any, pairs: Any, options: dict[str, Any]) -> tuple[EncodeRequest, Inputs]:
    """What is asked for, and of what; any number of inputs or pairs, also none.

    Raises:
        Invalid: as for a body that holds the same; or an encoding, which arrays have none of.
    """
    if (inputs is None) == (pairs is None):
        raise Invalid("inputs: give either inputs or pairs", param="inputs")
    name, values = ("inputs", inputs) if pairs is None else ("pairs", pairs)
    body = {name: _as_json(_listed(values)), **_as_json(options)}
    request = validate_value(EncodeRequest, body)
    if request.encoding_format in {"base64", "float16"}:
        raise Invalid(
            f"encoding_format: arrays are returned here, which have no {request.encoding_format}; leave it out, or "
            "name one of fewer bits",
            param="encoding_format",
        )
    return request, _read(body[name], is_paired=pairs is not None)


def read_score_call(queries: Any, documents: Any, options: dict[str, Any]) -> Scoring:
    """Texts to score, any number of them.

    Raises:
        Invalid: as for a body that holds the same.
    """
    texts = {"queries": _as_json(_listed(queries)), "documents": _as_json(_listed(documents))}
    call = validate_value(ScoreOptions, {**texts, **_as_json(options)})
    given, found = _as_list(call.queries), _as_list(call.documents)
    if len(given) not in {1, len(found)}:
        raise Invalid(
            f"queries: {len(given)} queries and {len(found)} documents: give one query, or one for each",
            param="queries",
        )
    return _as_scoring(given, call, "queries")


def read_rerank_call(query: Any, documents: Any, options: dict[str, Any]) -> tuple[Scoring, int | None]:
    """Documents to order, any number of them; and how many of the best are wanted.

    Raises:
        Invalid: as for a body that holds the same.
    """
    texts = {"query": _as_json(query), "documents": _as_json(_listed(documents))}
    call = validate_value(RerankOptions, {**texts, **_as_json(options)})
    return replace(_as_scoring([call.query], call, "query"), attention=call.attention), call.top_n


def read_classify_call(
    inputs: Any, pairs: Any, options: dict[str, Any], manifest: Manifest
) -> tuple[EncodeRequest, Inputs]:
    """What a classifier is asked.

    Raises:
        WrongTask: the model is no classifier.
        Invalid: as `read_call`; or an output that is no score.
    """
    if manifest.task != "classification":
        raise WrongTask(f"{manifest.model} is for {manifest.task.replace('_', '-')}: only a classifier has labels")
    request, given = read_call(inputs, pairs, options)
    if request.output != "pooled":
        raise Invalid(f'output: labels are answered here, not "{request.output}"; `encode` has them', param="output")
    return request, given


def read_explain_call(a: str, b: str | None, options: dict[str, Any]) -> ExplainRequest:
    """Two texts to compare, or what a classifier reads.

    Raises:
        Invalid: as for a body that holds the same.
    """
    request = validate_value(ExplainRequest, {"a": _as_json(a), "b": _as_json(b), **_as_json(options)})
    for field, neutral in (("level", "token"), ("top_pairs", None)):
        if getattr(request, field) != neutral:
            raise Invalid(f"{field}: an array of all pairs of tokens is returned here; leave it out", param=field)
    return request


def _as_list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _as_scoring(queries: list[str], call: ScoringOptions, query_name: str) -> Scoring:
    return Scoring(
        queries,
        _as_list(call.documents),
        query_name=query_name,
        truncate=call.truncate,
        document_tokens=call.max_tokens_per_doc,
        raw_scores=call.raw_scores,
        head_mask=call.head_mask,
    )


def _read(values: Any, *, is_paired: bool) -> Inputs:
    most = len(values) if isinstance(values, list) else 1
    if is_paired:
        return Inputs(text_pairs=()) if values == [] else read_pairs(values, max_texts=most)
    return Inputs(texts=()) if values == [] else read_inputs(values, max_texts=most)


def _listed(inputs: Any) -> Any:
    """Generators and the like as a list; bytes are no token ids, though Python counts them through as numbers."""
    if isinstance(inputs, str | bytes | bytearray | memoryview | np.ndarray) or not isinstance(inputs, Iterable):
        return inputs
    return list(inputs)


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
