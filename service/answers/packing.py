"""An answer's arrays in the forms other than JSON numbers: base64 inside the JSON, or one safetensors body."""

import base64
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.answers.attention import ARRAYS
from service.wire import Piece

Array = NDArray[Any]

VECTORS = ("embeddings", "scores", "multi_vector")
"""Fields of an answer that hold one row an input."""

SAFETENSORS_LAYOUT = """\
One safetensors body.

- `embeddings` [inputs, dimensions], float32, or int8 or uint8 as `encoding_format` says; with `output` "tokens", and of
  a multi-vector model, one `embeddings.{i}` [tokens, dimensions] for each input i, also in float16; with
  `return_tokens` beside it `tokens.{i}.input_ids` [tokens] and `tokens.{i}.offsets` [tokens, 2], with `pool_factor`
  `tokens.{i}.rows` [tokens], in int32; of a classifier `scores` [inputs, labels]; of a sparse model
  `sparse.{i}.indices` and `sparse.{i}.values` [words]; `outputs` adds these two and `multi_vector.{i}`
- `attention.{i}` [layers, heads, queries, keys], float32, or float16 with `encoding_format` "float16"; where the layers
  asked for differ in heads one `attention.{i}.{l}` [heads, queries, keys] for each layer l instead
- with `top_k` its keys are the k largest, and beside it stand `attention.{i}.indices` [layers, heads, queries, k] in
  int32 and `attention.{i}.left_out` [layers, heads, queries]; or `attention.{i}.{l}.indices` and so on
- the metadata's `answer`: everything else, as the JSON answer has it"""

DTYPES: Mapping[str, str] = MappingProxyType(
    {"float32": "F32", "float16": "F16", "int32": "I32", "int8": "I8", "uint8": "U8"}
)

_ALIGNMENT = 8

BLOCK = 32_768  # numbers, or characters

_TOO_LARGE = np.uint32(0x477FF000)  # 65,520 as float32: from here on float16 has infinity only

_SMALLEST_NORMAL = np.uint32(0x38800000)  # 2**-14

_REBIAS = np.uint32(2**32 - 0x38000000 + 0xFFF)  # the exponent's bias from 127 to 15, and just under half a step

_HALF = np.float32(0.5)  # its last bit is worth 2**-24, float16's smallest number: adding it rounds to such steps

_HALF_BITS = np.uint32(0x3F000000)


def as_base64(array: Array) -> str:
    """The numbers row by row, little-endian."""
    return _encoded(array).decode("ascii")


def pack_base64(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer with a text for each input's embedding, and dtype, shape and text for each layer's array."""
    packed = dict(answer)
    for name in VECTORS:
        if name in answer:
            packed[name] = [_fragment(vectors) for vectors in answer[name]]
    if "sparse" in answer:
        packed["sparse"] = [{name: _fragment(array) for name, array in words.items()} for words in answer["sparse"]]
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
        is_half: whether attention weights and vectors of tokens are written as float16.
    """
    tensors = {
        name: [_shortened(array) if is_half and name.startswith(("embeddings.", "multi_vector.")) else _released(array)]
        for name, array in _outputs(answer).items()
    }
    rest = {name: value for name, value in answer.items() if name not in (*VECTORS, "sparse", "tokens")}
    if "attention" in answer:
        for index, entry in enumerate(answer["attention"]):
            tensors |= _named(f"attention.{index}", entry, is_half=is_half)
        rest["attention"] = [
            {name: value for name, value in entry.items() if name not in ARRAYS} for entry in answer["attention"]
        ]
    return write_safetensors(tensors, {"answer": _dump_in_parts(rest)})


def _dump_in_parts(rest: Mapping[str, Any]) -> str:
    """JSON, written an entry at a time: one call of orjson lets no other thread run, megabytes would take long."""
    fields = []
    for name, value in rest.items():
        parts = value if isinstance(value, list) and value else [value]
        written = b",".join(orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY) for part in parts)
        fields.append(b'"%b":%b' % (name.encode(), b"[%b]" % written if parts is value else written))
    return (b"{" + b",".join(fields) + b"}").decode("utf-8")


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
    for index, entry in enumerate(answer.get("tokens", ())):
        found |= {f"tokens.{index}.{name}": array for name, array in entry.items() if array is not None}
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
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": _fragment(array)}


def _fragment(array: Array) -> memoryview:
    """base64 that is JSON already, so that no writer looks through it for what has to be escaped."""
    return memoryview(b'"%b"' % _encoded(array))


def _encoded(array: Array) -> bytes:
    return base64.b64encode(bytes_of(array))


def write_safetensors(tensors: Mapping[str, Sequence[NDArray[Any]]], metadata: Mapping[str, str]) -> list[Piece]:
    """Arrays and texts as one safetensors body, in pieces: megabytes are sent without a copy.

    Args:
        tensors: each as its rows: one or several arrays of one type, joined along their first axis.
        metadata: texts by name.

    Raises:
        KeyError: a dtype that is not in `DTYPES`.
    """
    header: dict[str, Any] = {"__metadata__": {name: _quoted(text) for name, text in metadata.items()}}
    pieces: list[Piece] = []
    offset = 0
    for name, arrays in sorted(tensors.items(), key=lambda entry: -entry[1][0].itemsize):
        end = offset + sum(array.nbytes for array in arrays)
        shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
        header[name] = {"dtype": DTYPES[arrays[0].dtype.name], "shape": shape, "data_offsets": (offset, end)}
        pieces += map(bytes_of, arrays)
        offset = end
    written = orjson.dumps(header)
    written += b" " * (-len(written) % _ALIGNMENT)
    return [len(written).to_bytes(8, "little") + written, *pieces]


def _quoted(text: str) -> orjson.Fragment:
    """A text as JSON, escaped a part at a time for the sake of other threads."""
    parts = (orjson.dumps(text[start : start + BLOCK])[1:-1] for start in range(0, len(text), BLOCK))
    return orjson.Fragment(b'"' + b"".join(parts) + b'"')


def bytes_of(array: NDArray[Any]) -> memoryview:
    """The numbers row by row, little-endian: the array's own memory if it has that order."""
    little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little_endian.reshape(-1).view(np.uint8).data


def as_half(array: NDArray[np.float32]) -> NDArray[np.float16]:
    """The same numbers rounded to the nearest float16, ties to even: bit for bit `array.astype(np.float16)`.

    Quick for what attention consists of, numbers from 0 to 65,519; anything else takes `astype`.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if not flat.size or flat.view(np.uint32).max() >= _TOO_LARGE:  # as bits a sign and a NaN are large, too
        return array.astype(np.float16)
    half = np.empty(flat.size, np.uint16)
    work, tiny = np.empty((2, min(BLOCK, flat.size)), np.uint32)
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        _convert(block, work[: block.size], tiny[: block.size], half[start : start + BLOCK])
    return half.view(np.float16).reshape(array.shape)


def _convert(block: NDArray[np.float32], work: NDArray[Any], tiny: NDArray[Any], half: NDArray[np.uint16]) -> None:
    bits = block.view(np.uint32)
    np.right_shift(bits, 13, out=work)
    np.bitwise_and(work, 1, out=work)  # ties go to even
    np.add(work, _REBIAS, out=work)
    np.add(work, bits, out=work)
    np.right_shift(work, 13, out=work)
    np.add(block, _HALF, out=tiny.view(np.float32))
    np.subtract(tiny, _HALF_BITS, out=tiny)
    np.subtract(tiny, work, out=tiny)  # chosen by arithmetic: a copy under a mask guesses wrong at every other number
    np.multiply(tiny, bits < _SMALLEST_NORMAL, out=tiny)
    np.add(work, tiny, out=work)
    half[:] = work
