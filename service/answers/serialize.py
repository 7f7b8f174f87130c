"""Answers as JSON bytes, without holding up the event loop for long.

Floats are written as the shortest decimal that reads back as the same float32 (orjson). It does not know what an answer
means.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
from numpy import ndarray

from service.inference.backend import Float32Array
from service.wire import Piece

# Serialising holds the GIL and the event loop: larger answers are written in pieces of about this many floats, a
# millisecond or two each, with the loop let in between.
PIECE_FLOATS = 32_768
VALUE_FLOATS = 16  # any value costs as much as this many floats


_DIVIDED = (ndarray, dict, list, str, memoryview)
"""What lists are written a part at a time of."""


async def serialize(answer: Any, *, floats: int) -> bytes:
    """An answer as JSON, whatever it is made of; C-contiguous float32 arrays in it become nested lists.

    Args:
        answer: JSON types, arrays, and memoryviews of bytes that are JSON; its lists of arrays and objects are emptied.
        floats: how many floats its arrays hold, about.
    """
    return b"".join(await serialize_in_pieces(answer, floats=floats))


async def serialize_in_pieces(answer: Any, *, floats: int) -> list[Piece]:
    """As `serialize`, for answers of megabytes, which are better not copied as a whole."""
    if floats <= PIECE_FLOATS:
        return [_dump(answer)]
    pieces: list[Piece] = []
    await _write(answer, pieces)
    return pieces


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, default=_as_fragment, option=orjson.OPT_SERIALIZE_NUMPY)


def _as_fragment(value: Any) -> orjson.Fragment:
    """What orjson does not know: JSON that is written already."""
    if not isinstance(value, memoryview):
        raise TypeError(f"expected JSON types, arrays or bytes of JSON, got {type(value).__name__}")
    return orjson.Fragment(bytes(value))


async def _write(value: Any, pieces: list[Piece]) -> None:
    """Adds a value to the pieces, every array in it by itself."""
    if isinstance(value, ndarray):
        await _write_array(value, pieces)
    elif isinstance(value, dict):
        for index, (key, item) in enumerate(value.items()):
            pieces += (b"," if index else b"{", _dump(key), b":")
            await _write(item, pieces)
        pieces.append(b"}" if value else b"{}")
    elif isinstance(value, list) and value and isinstance(value[0], _DIVIDED):
        for index, group in enumerate(_groups(value)):
            await asyncio.sleep(0)
            pieces.append(b"," if index else b"[")
            if len(group) == 1:
                await _write(group[0], pieces)
            else:
                pieces.append(_dump(group)[1:-1])
        pieces.append(b"]")
    elif isinstance(value, memoryview):
        pieces.append(value)  # a megabyte of base64, say: sent without a copy
    else:
        pieces.append(_dump(value))


def _groups(items: list[Any]) -> Iterator[list[Any]]:
    """Items that are written together: of about `PIECE_FLOATS`, or one that is larger.

    Each is taken out of the list: to free thousands of arrays at once would hold the event loop as well.
    """
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


async def _write_array(array: Float32Array, pieces: list[Piece]) -> None:
    """Adds an array, in blocks of rows or numbers if it is large."""
    if array.size <= PIECE_FLOATS:
        await asyncio.sleep(0)
        pieces.append(_dump(array))
        return
    rows = max(1, PIECE_FLOATS * len(array) // array.size)
    for start in range(0, len(array), rows):
        pieces.append(b"," if start else b"[")
        block = array[start : start + rows]
        if rows == 1:
            await _write_array(block[0], pieces)
        else:
            await asyncio.sleep(0)
            pieces.append(_dump(block)[1:-1])
    pieces.append(b"]")
