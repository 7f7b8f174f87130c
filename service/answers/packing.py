"""Answers as bytes: JSON, base64 inside it, or one safetensors body. It does not know what an answer means.

JSON is written without holding up the event loop for long, floats as the shortest decimal that reads back as the same
float32 (orjson).
"""

import asyncio
import base64
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
from numpy import ndarray
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

BLOCK = 32_768  # numbers, or characters
_TOO_LARGE = np.uint32(0x477FF000)  # 65,520 as float32: from here on float16 has infinity only
_SMALLEST_NORMAL = np.uint32(0x38800000)  # 2**-14
_REBIAS = np.uint32(2**32 - 0x38000000 + 0xFFF)  # the exponent's bias from 127 to 15, and just under half a step
_HALF = np.float32(0.5)  # its last bit is worth 2**-24, float16's smallest number: adding it rounds to such steps
_HALF_BITS = np.uint32(0x3F000000)


def as_base64(array: Array) -> str:
    """The numbers row by row, little-endian."""
    return base64.b64encode(bytes_of(array)).decode("ascii")


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

    With `is_half` attention weights and vectors of tokens are written as float16.
    """
    tensors = {
        name: [_as_written(array, is_half=is_half and name.startswith(("embeddings.", "multi_vector.")))]
        for name, array in _outputs(answer).items()
    }
    rest = {name: value for name, value in answer.items() if name not in (*VECTORS, "sparse", "tokens")}
    if "attention" in answer:
        for index, entry in enumerate(answer["attention"]):
            tensors |= _named(f"attention.{index}", entry, is_half=is_half)
        rest["attention"] = [
            {name: value for name, value in entry.items() if name not in ARRAYS} for entry in answer["attention"]
        ]
    return write_safetensors(tensors, {"answer": b"".join(_written(rest)).decode("utf-8")})


def _outputs(answer: Mapping[str, Any]) -> dict[str, Array]:
    """What the task gives, by name."""
    found: dict[str, Array] = {}
    for name in VECTORS:
        whole = answer.get(name, ())
        is_one = isinstance(whole, ndarray)
        found |= {name: whole} if is_one else {f"{name}.{index}": rows for index, rows in enumerate(whole)}
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
        layers = [_as_written(array, is_half=is_half) for array in entry[field]]
        if len({array.shape for array in layers}) == 1:
            tensors[f"{prefix}{suffix}"] = [layer[np.newaxis] for layer in layers]
        else:
            names = [f"{prefix}.{layer}{suffix}" for layer in entry["layers"]]
            tensors |= {name: [layer] for name, layer in zip(names, layers, strict=True)}
    return tensors


def _as_written(array: Array, *, is_half: bool) -> Array:
    """The array, float16 if asked for, without holding what others had of its batch until a slow client has read it."""
    if is_half and array.dtype == np.float32:
        return as_half(array)
    base = array.base
    return array.copy() if isinstance(base, ndarray) and base.nbytes > array.nbytes else array


def _tensor(array: Array) -> dict[str, Any]:
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": _fragment(array)}


def _fragment(array: Array) -> memoryview:
    """base64 that is JSON already, so that no writer looks through it for what has to be escaped."""
    return memoryview(b'"%b"' % base64.b64encode(bytes_of(array)))


def write_safetensors(tensors: Mapping[str, Sequence[NDArray[Any]]], metadata: Mapping[str, str]) -> list[Piece]:
    """Arrays and texts as one safetensors body, in pieces: megabytes are sent without a copy.

    A tensor comes as its rows: one or several arrays of one type in `DTYPES`, joined along their first axis.
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
    written += b" " * (-len(written) % 8)  # so that arrays begin where readers want their numbers
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


# Serialising holds the GIL and the event loop: larger answers are written in pieces of about this many floats, a
# millisecond or two each, with the loop let in between.
PIECE_FLOATS = 32_768
SHORT_BYTES = 256  # commas, names: pieces that take no time
VALUE_FLOATS = 16  # any value costs as much as this many floats


async def serialize_in_pieces(answer: Any, *, floats: int) -> list[Piece]:
    """An answer of about `floats` numbers as JSON; C-contiguous float32 arrays in it become nested lists.

    It holds JSON types, arrays, and memoryviews of bytes that are JSON; its lists of arrays and objects are emptied.
    """
    if floats <= PIECE_FLOATS:
        return [_dump(answer)]
    pieces: list[Piece] = []
    for piece in _written(answer):
        pieces.append(piece)
        if len(piece) > SHORT_BYTES:
            await asyncio.sleep(0)
    return pieces


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, default=_as_fragment, option=orjson.OPT_SERIALIZE_NUMPY)


def _as_fragment(value: Any) -> orjson.Fragment:
    """What orjson does not know: JSON that is written already; not arrays of another order, say."""
    if not isinstance(value, memoryview):
        raise TypeError(f"expected JSON types, arrays or bytes of JSON, got {type(value).__name__}")
    return orjson.Fragment(bytes(value))


def _written(value: Any) -> Iterator[Piece]:
    """A value as JSON in pieces, which are written one after the other as they are asked for."""
    if isinstance(value, dict):
        for index, (key, item) in enumerate(value.items()):
            yield (b"," if index else b"{") + _dump(key) + b":"
            yield from _written(item)
        yield b"}" if value else b"{}"
    elif _has_groups(value):
        for index, group in enumerate(_groups(value)):
            yield b"," if index else b"["
            if len(group) == 1:
                yield from _written(group[0])
            else:
                yield _dump(group)[1:-1]
        yield b"]"
    else:
        yield value if isinstance(value, memoryview) else _dump(value)  # megabytes of base64 are sent without a copy


def _has_groups(value: Any) -> bool:
    if isinstance(value, ndarray):
        return value.size > PIECE_FLOATS
    return isinstance(value, list) and bool(value) and isinstance(value[0], ndarray | dict | list | str | memoryview)


def _groups(items: Any) -> Iterator[Any]:
    """Items of a list, or rows, that are written together: of about `PIECE_FLOATS`, or one that is larger.

    Each is taken out of the list: to free thousands of arrays at once would hold the event loop as well.
    """
    if isinstance(items, ndarray):
        rows = max(1, PIECE_FLOATS * len(items) // items.size)
        yield from (items[start : start + rows] for start in range(0, len(items), rows))
        return
    group: list[Any] = []
    total = 0
    for index, item in enumerate(items):
        items[index] = None
        size = _size(item)
        if group and total + size > PIECE_FLOATS:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    yield group


def _size(value: Any) -> int:
    """What writing a value costs, in floats, about."""
    if isinstance(value, ndarray):
        return VALUE_FLOATS + value.size
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list) and value and isinstance(value[0], ndarray | dict | list):
        return sum(map(_size, value))
    if isinstance(value, list | str | memoryview):
        return VALUE_FLOATS + len(value)
    return VALUE_FLOATS
