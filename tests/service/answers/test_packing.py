"""Answers as bytes: safetensors and which arrays are sent without a copy, float16, and JSON in pieces."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
from safetensors.numpy import load

from service.answers import packing
from service.answers.packing import BLOCK, DTYPES, as_half, pack_safetensors, serialize_in_pieces, write_safetensors
from service.inference.backend import Float32Array


def answer_with(layers: list[Float32Array]) -> dict[str, Any]:
    entry = {"layers": list(range(len(layers))), "weights": layers}
    return {"model": "m", "embeddings": np.ones((1, 4), np.float32), "attention": [entry]}


@pytest.mark.parametrize("mates", [0, 3])
def test_a_text_alone_in_its_batch_is_not_copied_and_its_mates_are_not_held(mates: int) -> None:
    batches = [np.random.default_rng(layer).random((1 + mates, 2, 100, 100), np.float32) for layer in range(3)]
    layers = [batch[0] for batch in batches]
    pieces = pack_safetensors(answer_with(layers), is_half=False)
    np.testing.assert_array_equal(load(b"".join(pieces))["attention.0"], np.stack(layers))
    for piece, batch in zip(pieces[-3:], batches, strict=True):
        assert np.shares_memory(np.asarray(piece), batch) == (not mates)


def written(tensors: dict[str, Any], metadata: dict[str, str]) -> bytes:
    """The body, each array as a whole."""
    return b"".join(write_safetensors({name: [array] for name, array in tensors.items()}, metadata))


ARRAYS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda dtype: numpy_strategies.arrays(dtype, numpy_strategies.array_shapes(max_dims=4, max_side=5, min_side=0))
)
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@given(st.dictionaries(TEXT, ARRAYS.map(np.transpose), max_size=5), st.text(st.characters(codec="utf-8")))
def test_arrays_and_metadata_are_read_back_bit_for_bit(tensors: dict[str, Any], text: str) -> None:
    tensors.pop("__metadata__", None)
    body = written(tensors, {"answer": text, "other": ""})
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    assert header["__metadata__"] == {"answer": text, "other": ""}
    read = load(body)
    assert set(read) == set(tensors)
    for name, array in tensors.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()


def test_every_array_starts_at_a_multiple_of_its_number_size() -> None:
    tensors: dict[str, Any] = {"a": np.zeros(3, np.float16), "b": np.ones(5, np.float32), "c": np.zeros(1, np.float16)}
    body = written({**tensors, "d": np.ones(2, np.int32)}, {"note": "x"})
    header = int.from_bytes(body[:8], "little")
    assert header % 8 == 0
    assert body[8 + header :][: 7 * 4] == np.ones(5, np.float32).tobytes() + np.ones(2, np.int32).tobytes()


def in_one(answer: Any, floats: int) -> bytes:
    return b"".join(asyncio.run(serialize_in_pieces(answer, floats=floats)))


def check_half(array: Any) -> None:
    with np.errstate(over="ignore"):
        expected, found = array.astype(np.float16), as_half(array)
    assert (found.tobytes(), found.shape) == (expected.tobytes(), expected.shape)


def test_every_number_of_float16_its_neighbours_and_every_tie() -> None:
    exact = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    values = np.concatenate([exact, (exact[1:] + exact[:-1]) / 2])
    for neighbours in (values, np.nextafter(values, np.float32(np.inf)), np.nextafter(values, np.float32(0))):
        check_half(neighbours.astype(np.float32))


def test_halves_of_any_shape_and_order_and_what_attention_never_is(generator: np.random.Generator) -> None:
    array = generator.random((3, BLOCK + 7), dtype=np.float32)  # more than a block
    for view in (array, array[:, ::3], array.T, array[:0], array[:, :6].reshape(1, 3, 2, 3), array[0, 0]):
        check_half(np.asarray(view))
    for value in (-1.0, -0.0, 65_519.9, 65_520.0, 1e9, np.inf, np.nan):
        check_half(np.array([0.5, value], dtype=np.float32))


@given(
    numpy_strategies.arrays(
        np.float32,
        numpy_strategies.array_shapes(max_dims=4, max_side=6, min_side=0),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    st.integers(1, 40),
)
def test_pieces_read_back_bit_for_bit(array: Any, piece: int) -> None:
    answer = {"name": "x", "nested": [{"array": array, "ids": [1, 2]}], "pairs": [(0, 1)]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PIECE_FLOATS", piece)
        read = json.loads(in_one(answer, array.size))
    found = np.array(read["nested"][0].pop("array"), dtype=np.float32)
    assert found.reshape(array.shape).tobytes() == array.tobytes()
    assert read == {"name": "x", "nested": [{"ids": [1, 2]}], "pairs": [[0, 1]]}


def test_floats_are_the_shortest_that_read_back() -> None:
    array = np.array([0.1, 1 / 3, 1e-8, 16777216], dtype=np.float32)
    assert in_one({"a": array}, 4) == b'{"a":[0.1,0.33333334,1e-8,16777216.0]}'


@pytest.mark.parametrize("shape", [(4, 300, 300), (64, 3000), (400_000,)])
def test_other_tasks_run_while_a_large_answer_is_written(shape: tuple[int, ...]) -> None:
    turns: list[None] = []

    async def other() -> None:
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    async def both() -> None:
        task = asyncio.create_task(other())
        await serialize_in_pieces({"a": np.zeros(shape, dtype=np.float32)}, floats=400_000)
        task.cancel()

    asyncio.run(both())
    assert len(turns) >= 5


@pytest.mark.parametrize("floats", [0, 10**6])
def test_bytes_that_are_json_stand_in_the_answer_as_they_are(floats: int) -> None:
    answer = {"a": [{"data": memoryview(b'"QUJD"'), "shape": [1]}], "b": memoryview(b"[1]")}
    written = in_one(answer, floats)
    assert json.loads(written) == {"a": [{"data": "QUJD", "shape": [1]}], "b": [1]}


@pytest.mark.parametrize("value", [object(), np.zeros((2, 3), np.float32).T], ids=["object", "array of another order"])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="expected JSON types|not JSON"):
        in_one({"a": value}, 0)
