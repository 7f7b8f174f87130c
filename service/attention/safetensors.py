"""The safetensors format, written: named arrays and texts in one body, read by a library of that name in any language.

    8 bytes          length of the header, little-endian
    header           JSON: {"__metadata__": {name: text}, name: {"dtype", "shape", "data_offsets": [start, end)}}
    data             each array little-endian, row by row; offsets count from the end of the header

The header is padded with spaces to a multiple of 8, as the library does, and arrays of larger numbers come first: so
each one starts at a multiple of its number's size and can be read in place. It does not know what the arrays mean.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

DTYPES: Mapping[str, str] = MappingProxyType({"float32": "F32", "float16": "F16", "int32": "I32"})

_ALIGNMENT = 8


def write_safetensors(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """Arrays and texts as one safetensors body.

    Raises:
        KeyError: a dtype that is not in `DTYPES`.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts: list[memoryview] = []
    offset = 0
    for name, array in sorted(tensors.items(), key=lambda entry: -entry[1].itemsize):
        little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        end = offset + little_endian.nbytes
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": (offset, end)}
        parts.append(little_endian.data)
        offset = end
    written = orjson.dumps(header)
    written += b" " * (-len(written) % _ALIGNMENT)
    return b"".join([len(written).to_bytes(8, "little"), written, *parts])
