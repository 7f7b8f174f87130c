"""An answer's arrays in the forms other than JSON numbers: base64 inside the JSON, or one safetensors body."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.answers.attention import ARRAYS
from service.answers.half import as_half
from service.answers.safetensors import bytes_of, write_safetensors
from service.wire import Piece

Array = NDArray[Any]
VECTORS = ("embeddings", "scores")
"""Fields of an answer that hold one row an input."""

SAFETENSORS_LAYOUT = """\
One safetensors body.

- `embeddings` [inputs, dimensions], float32, or int8 or uint8 as `encoding_format` says; with `output` "tokens" one
  `embeddings.{i}` [tokens, dimensions] for each input i; of a classifier `scores` [inputs, labels]; of a sparse model
  `sparse.{i}.indices` and `sparse.{i}.values` [words]
- `attention.{i}` [layers, heads, queries, keys], float32, or float16 with `encoding_format` "float16"; where the layers
  asked for differ in heads one `attention.{i}.{l}` [heads, queries, keys] for each layer l instead
- with `top_k` its keys are the k largest, and beside it stand `attention.{i}.indices` [layers, heads, queries, k] in
  int32 and `attention.{i}.left_out` [layers, heads, queries]; or `attention.{i}.{l}.indices` and so on
- the metadata's `answer`: everything else, as the JSON answer has it"""


def as_base64(array: Array) -> str:
    """The numbers row by row, little-endian."""
    return _encoded(array).decode("ascii")


def pack_base64(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer with a text for each input's embedding, and dtype, shape and text for each layer's array."""
    packed = dict(answer)
    for name in VECTORS:
        if name in answer:
            packed[name] = [as_base64(vectors) for vectors in answer[name]]
    if "sparse" in answer:
        packed["sparse"] = [{name: as_base64(array) for name, array in words.items()} for words in answer["sparse"]]
    if "attention" in answer:
        packed["attention"] = [
            {name: list(map(_tensor, value)) if name in ARRAYS else value for name, value in entry.items()}
            for entry in answer["attention"]
        ]
    return packed


def pack_safetensors(answer: Mapping[str, Any], *, is_half: bool) -> list[Piece]:
    """The answer as `SAFETENSORS_LAYOUT` says, in pieces, which share the memory of its arrays.

    Args:
        answer: as `service.answers.answer.build_answer` gives it.
        is_half: whether attention weights are written as float16.
    """
    tensors = {name: [_released(array)] for name, array in _outputs(answer).items()}
    rest = {name: value for name, value in answer.items() if name not in (*VECTORS, "sparse")}
    if "attention" in answer:
        for index, entry in enumerate(answer["attention"]):
            tensors |= _named(f"attention.{index}", entry, is_half=is_half)
        rest["attention"] = [
            {name: value for name, value in entry.items() if name not in ARRAYS} for entry in answer["attention"]
        ]
    written = orjson.dumps(rest, option=orjson.OPT_SERIALIZE_NUMPY)
    return write_safetensors(tensors, {"answer": written.decode("utf-8")})


def _outputs(answer: Mapping[str, Any]) -> dict[str, Array]:
    """What the task gives, by name."""
    found: dict[str, Array] = {}
    for name in VECTORS:
        whole = answer.get(name, ())
        found |= (
            {name: whole} if isinstance(whole, np.ndarray) else {f"{name}.{i}": rows for i, rows in enumerate(whole)}
        )
    for index, words in enumerate(answer.get("sparse", ())):
        found |= {f"sparse.{index}.{name}": array for name, array in words.items()}
    return found


def _named(prefix: str, entry: Mapping[str, Any], *, is_half: bool) -> dict[str, list[Array]]:
    """An entry's arrays by name: one of all layers, or one a layer where layers differ in heads."""
    tensors: dict[str, list[Array]] = {}
    for field in ARRAYS:
        if field not in entry:
            continue
        suffix = "" if field == "weights" else f".{field}"
        layers = [_shortened(array) if is_half else _released(array) for array in entry[field]]
        if len({array.shape for array in layers}) == 1:
            tensors[f"{prefix}{suffix}"] = [layer[np.newaxis] for layer in layers]
        else:
            names = [f"{prefix}.{layer}{suffix}" for layer in entry["layers"]]
            tensors |= {name: [layer] for name, layer in zip(names, layers, strict=True)}
    return tensors


def _shortened(array: Array) -> Array:
    return as_half(array) if array.dtype == np.float32 else array


def _released(array: Array) -> Array:
    """The array, without holding what others had of its batch until a slow client has read it."""
    base = array.base
    return array.copy() if isinstance(base, np.ndarray) and base.nbytes > array.nbytes else array


def _tensor(array: Array) -> dict[str, Any]:
    """A layer's array; its data is JSON already, so nobody looks through it for what has to be escaped."""
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": memoryview(b'"%b"' % _encoded(array))}


def _encoded(array: Array) -> bytes:
    return base64.b64encode(bytes_of(array))
