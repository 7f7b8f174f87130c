"""Answers as JSON bytes, without holding up the event loop for long.

Floats are written as the shortest decimal that reads back as the same float32 (orjson). It does not know what an answer
means.
"""

import asyncio
from typing import Any

import orjson
from numpy import ndarray

from service.backend import Float32Array

# Serialising holds the GIL and the event loop: larger answers are written in pieces of about this many floats, a
# millisecond or two each, with the loop let in between.
PIECE_FLOATS = 32_768


async def serialize(answer: Any, *, floats: int) -> bytes:
    """An answer as JSON, whatever it is made of; C-contiguous float32 arrays in it become nested lists.

    Args:
        answer: JSON types and arrays.
        floats: how many floats its arrays hold, about.
    """
    if floats > PIECE_FLOATS:
        answer = await _written(answer)
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


async def _written(value: Any) -> Any:
    """The same with every array written already."""
    if isinstance(value, ndarray):
        return orjson.Fragment(await _write(value))
    if isinstance(value, dict):
        return {key: await _written(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], ndarray | dict):
        return [await _written(item) for item in value]
    return value


async def _write(array: Float32Array) -> bytes:
    """An array as JSON, by blocks of rows, or of numbers, where it is large."""
    if array.size <= PIECE_FLOATS:
        await asyncio.sleep(0)
        return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    row_size = array.size // len(array)
    if row_size > PIECE_FLOATS:
        parts = [await _write(row) for row in array]
    else:
        rows = PIECE_FLOATS // row_size
        parts = [(await _write(array[start : start + rows]))[1:-1] for start in range(0, len(array), rows)]
    return b"[" + b",".join(parts) + b"]"
