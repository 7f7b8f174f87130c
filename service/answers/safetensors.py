"""The safetensors format, written: named arrays and texts in one body, read by a library of that name in any language.

    8 bytes          length of the header, little-endian
    header           JSON: {"__metadata__": {name: text}, name: {"dtype", "shape", "data_offsets": [start, end)}}
    data             each array little-endian, row by row; offsets count from the end of the header

The header is padded with spaces to a multiple of 8, as the library does, and arrays of larger numbers come first: so
each one starts at a multiple of its number's size and can be read in place. It does not know what the arrays mean.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.wire import Piece

DTYPES: Mapping[str, str] = MappingProxyType(
    {"float32": "F32", "float16": "F16", "int32": "I32", "int8": "I8", "uint8": "U8"}
)

_ALIGNMENT = 8


def write_safetensors(tensors: Mapping[str, Sequence[NDArray[Any]]], metadata: Mapping[str, str]) -> list[Piece]:
    """Arrays and texts as one safetensors body, in pieces: megabytes are not copied, but sent from where they are.

    Args:
        tensors: each as its rows: one or several arrays of one type, joined along their first axis.
        metadata: texts by name.

    Raises:
        KeyError: a dtype that is not in `DTYPES`.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
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


def bytes_of(array: NDArray[Any]) -> memoryview:
    """The numbers row by row, little-endian: the array's own memory, where they lie in it like that."""
    little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little_endian.reshape(-1).view(np.uint8).data
