"""How many bytes the numbers of an attention answer take, known from its shape before anything runs.

Exact for binary numbers and base64. For JSON an upper bound, since its numbers differ in length: weights after a
softmax come to about 13 bytes each where the bound counts 16. Tokens, offsets and field names are not counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Encoding = Literal["json", "base64_float32", "base64_float16", "float32", "float16"]

_INDEX_BYTES = 4  # int32
# The longest float32 in [0, 1] that orjson writes has 15 characters: nine digits, and no exponent from 1e-6 up
# ("0.0000123456789"). A comma follows.
_JSON_FLOAT_BYTES = 16
_JSON_ROW_BYTES = 8  # brackets and commas of a row, and of the map and the tensor where it is their only row


@dataclass(frozen=True, kw_only=True, slots=True)
class MapShape:
    """One tensor of an answer: the maps of one text and one layer.

    Attributes:
        maps: heads; 1 where they are reduced to one map.
        queries: rows of each map: tokens, words, what is left of them, or 1.
        keys: columns of each map.
        top_k: how many keys of each row are sent, with their indices and the mass left out; None for whole rows.
    """

    maps: int
    queries: int
    keys: int
    top_k: int | None = None


def maps_bytes(shapes: Iterable[MapShape], encoding: Encoding) -> int:
    """Bytes of an answer's maps; an upper bound where `encoding` is "json", else exact."""
    return sum(_whole_rows(shape, encoding) if shape.top_k is None else _top_k(shape, encoding) for shape in shapes)


def _whole_rows(shape: MapShape, encoding: Encoding) -> int:
    return _floats(shape.maps * shape.queries, shape.keys, encoding)


def _top_k(shape: MapShape, encoding: Encoding) -> int:
    rows, kept = shape.maps * shape.queries, min(shape.top_k or 0, shape.keys)
    return _floats(rows, kept, encoding) + _indices(rows, kept, shape.keys, encoding) + _floats(rows, 1, encoding)


def _floats(rows: int, columns: int, encoding: Encoding) -> int:
    if encoding == "json":
        return rows * (columns * _JSON_FLOAT_BYTES + _JSON_ROW_BYTES)
    size = 4 if encoding.endswith("float32") else 2
    return _packed(rows * columns * size, encoding)


def _indices(rows: int, columns: int, keys: int, encoding: Encoding) -> int:
    if encoding == "json":
        return rows * (columns * (len(str(keys - 1)) + 1) + _JSON_ROW_BYTES)
    return _packed(rows * columns * _INDEX_BYTES, encoding)


def _packed(size: int, encoding: Encoding) -> int:
    return -(-size // 3) * 4 if encoding.startswith("base64") else size
