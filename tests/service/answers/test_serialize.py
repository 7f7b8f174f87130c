import asyncio
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from service.answers import packing as module
from service.answers.packing import serialize


@given(
    numpy_strategies.arrays(
        np.float32,
        numpy_strategies.array_shapes(max_dims=4, max_side=6, min_side=0),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    st.integers(1, 40),
)
def test_pieces_read_back_bit_for_bit(array: Any, piece: int) -> None:
    before = module.PIECE_FLOATS
    module.PIECE_FLOATS = piece
    try:
        written = asyncio.run(
            serialize({"name": "x", "nested": [{"array": array, "ids": [1, 2]}], "pairs": [(0, 1)]}, floats=array.size)
        )
    finally:
        module.PIECE_FLOATS = before
    read = json.loads(written)
    assert read["name"] == "x"
    assert read["pairs"] == [[0, 1]]
    assert read["nested"][0]["ids"] == [1, 2]
    assert np.array(read["nested"][0]["array"], dtype=np.float32).reshape(array.shape).tobytes() == array.tobytes()


def test_floats_are_the_shortest_that_read_back() -> None:
    array = np.array([0.1, 1 / 3, 1e-8, 16777216], dtype=np.float32)
    assert asyncio.run(serialize({"a": array}, floats=4)) == b'{"a":[0.1,0.33333334,1e-8,16777216.0]}'


@pytest.mark.parametrize("shape", [(4, 300, 300), (64, 3000), (400_000,)])
def test_other_tasks_run_while_a_large_answer_is_written(shape: tuple[int, ...]) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both() -> bytes:
        task = asyncio.create_task(other())
        written = await serialize({"a": np.zeros(shape, dtype=np.float32)}, floats=400_000)
        task.cancel()
        return written

    asyncio.run(both())
    assert turns >= min(len(shape), 2) if len(shape) == 1 else turns >= 5


@pytest.mark.parametrize("floats", [0, 10**6])
def test_bytes_that_are_json_stand_in_the_answer_as_they_are(floats: int) -> None:
    answer = {"a": [{"data": memoryview(b'"QUJD"'), "shape": [1]}], "b": memoryview(b"[1]")}
    assert json.loads(asyncio.run(serialize(answer, floats=floats))) == {
        "a": [{"data": "QUJD", "shape": [1]}],
        "b": [1],
    }


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON|expected JSON types"):
        asyncio.run(serialize({"a": object()}, floats=0))
