"""A call from Python read as the body of `POST /encode` or `/explain` is, with Python's types in place of JSON's."""

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from service.errors import Invalid
from service.http.validation import explain_validation
from service.requests.explain_schemas import ExplainRequest
from service.requests.schemas import EncodeRequest
from service.tokenization.inputs import Inputs, read_inputs, read_pairs

M = TypeVar("M", bound=BaseModel)


def read_call(inputs: Any, pairs: Any, options: dict[str, Any]) -> tuple[EncodeRequest, Inputs]:
    """What is asked for, and of what; any number of inputs or pairs, also none.

    Raises:
        Invalid: as for a body that holds the same; or an encoding, which arrays have none of.
    """
    if (inputs is None) == (pairs is None):
        raise Invalid("inputs: give either inputs or pairs", param="inputs")
    name, values = ("inputs", inputs) if pairs is None else ("pairs", pairs)
    body = {name: _as_json(_listed(values)), **_as_json(options)}
    request = _validated(EncodeRequest, body)
    if request.encoding_format != "float":
        raise Invalid("encoding_format: arrays of float32 are returned here; leave it out", param="encoding_format")
    if request.long_texts is not None or request.spans is not None:
        field = "spans" if request.long_texts is None else "long_texts"
        raise Invalid(f"{field}: only POST /encode takes it; leave it out", param=field)
    return request, _read(body[name], is_paired=pairs is not None)


def read_explain_call(a: str, b: str, options: dict[str, Any]) -> ExplainRequest:
    """Two texts to compare.

    Raises:
        Invalid: as for a body that holds the same.
    """
    return _validated(ExplainRequest, {"a": _as_json(a), "b": _as_json(b), **_as_json(options)})


def _validated(kind: type[M], body: dict[str, Any]) -> M:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise explain_validation(error, kind) from None


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
