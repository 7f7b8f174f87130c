"""A call from Python read as `POST /encode`'s body is, with what Python callers have in place of JSON's types."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from pydantic import ValidationError

from service.errors import Invalid
from service.http.validation import explain_validation
from service.requests.schemas import EncodeRequest
from service.tokenization.inputs import Inputs, read_inputs


def read_call(inputs: Any, options: dict[str, Any]) -> tuple[EncodeRequest, Inputs]:
    """What is asked for, and of what; any number of inputs, also none.

    Raises:
        Invalid: as for a body that holds the same; or an encoding, which arrays have none of.
    """
    body = {"inputs": _as_json(_listed(inputs)), **_as_json(options)}
    try:
        request = EncodeRequest.model_validate(body)
    except ValidationError as error:
        raise explain_validation(error, EncodeRequest) from None
    if request.encoding_format != "float":
        raise Invalid("encoding_format: arrays of float32 are returned here; leave it out", param="encoding_format")
    if request.long_texts is not None or request.spans is not None:
        name = "spans" if request.long_texts is None else "long_texts"
        raise Invalid(f"{name}: only POST /encode takes it; leave it out", param=name)
    values = body["inputs"]
    if isinstance(values, list):
        return request, read_inputs(values, max_texts=len(values)) if values else Inputs(texts=())
    return request, read_inputs(values, max_texts=1)


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
