"""Which of an answer's arrays are sent without a copy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load

from service.answers.packing import BLOCK, DTYPES, as_half, pack_safetensors, write_safetensors
from service.inference.backend import Float32Array


def answer_with(layers: list[Float32Array]) -> dict[str, Any]:
    entry = {"layers": list(range(len(layers))), "weights": layers}
    return {"model": "m", "embeddings": np.ones((1, 4), np.float32), "attention": [entry]}


def test_a_text_alone_in_its_batch_is_not_copied() -> None:
    layers = [np.random.default_rng(layer).random((1, 2, 100, 100), np.float32)[0] for layer in range(3)]
    pieces = pack_safetensors(answer_with(layers), is_half=False)
    np.testing.assert_array_equal(load(b"".join(pieces))["attention.0"], np.stack(layers))
    assert all(np.shares_memory(np.asarray(piece), layer) for piece, layer in zip(pieces[-3:], layers, strict=True))


def test_an_answer_holds_nothing_of_its_batch_mates() -> None:
    batch = np.random.default_rng(0).random((4, 2, 100, 100), np.float32)
    pieces = pack_safetensors(answer_with([batch[2]]), is_half=False)
    np.testing.assert_array_equal(load(b"".join(pieces))["attention.0"], batch[2][np.newaxis])
    assert not any(np.shares_memory(np.frombuffer(piece, np.uint8), batch) for piece in pieces)


def written(tensors: dict[str, Any], metadata: dict[str, str]) -> bytes:
    """The body, each array as a whole."""
    return b"".join(write_safetensors({name: [array] for name, array in tensors.items()}, metadata))


arrays = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda dtype: numpy_strategies.arrays(dtype, numpy_strategies.array_shapes(max_dims=4, max_side=5, min_side=0))
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), arrays, max_size=5))
def test_arrays_are_read_back_bit_for_bit(tensors: dict[str, Any]) -> None:
    tensors.pop("__metadata__", None)
    read = load(written(tensors, {"note": "a"}))
    assert set(read) == set(tensors)
    for name, array in tensors.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()


def test_arrays_are_joined_along_their_first_axis_and_shared() -> None:
    layers = [np.full((1, 3, 5), layer, np.float32) for layer in range(4)]
    head, *pieces = write_safetensors({"a": layers, "b": [np.zeros((0, 2), np.int32)]}, {})
    read = load(b"".join([head, *pieces]))
    np.testing.assert_array_equal(read["a"], np.concatenate(layers))
    assert read["b"].shape == (0, 2)
    layers[3][:] = 7  # no copy was made
    assert np.frombuffer(pieces[3], np.float32)[0] == 7


def test_metadata_is_read_back(tmp_path: Path) -> None:
    metadata = {"answer": '{"words": ["日本", "\\"", "\\n"]}', "other": ""}
    (tmp_path / "a.safetensors").write_bytes(written({"a": np.zeros(3, np.float16)}, metadata))
    with safe_open(tmp_path / "a.safetensors", framework="np") as file:
        assert file.metadata() == metadata


def test_every_array_starts_at_a_multiple_of_its_number_size() -> None:
    tensors: dict[str, Any] = {"a": np.zeros(3, np.float16), "b": np.ones(5, np.float32), "c": np.zeros(1, np.float16)}
    body = written({**tensors, "d": np.ones(2, np.int32)}, {"note": "x"})
    header = int.from_bytes(body[:8], "little")
    assert header % 8 == 0
    assert body[8 + header :][: 7 * 4] == np.ones(5, np.float32).tobytes() + np.ones(2, np.int32).tobytes()


def test_rows_of_another_order_are_written_row_by_row() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.testing.assert_array_equal(load(written({"a": array}, {}))["a"], array)


def test_a_dtype_that_is_not_answered_is_refused() -> None:
    with pytest.raises(KeyError, match="float64"):
        written({"a": np.zeros(1)}, {})


def same(array: NDArray[np.float32]) -> bool:
    with np.errstate(over="ignore"):
        return as_half(array).tobytes() == array.astype(np.float16).tobytes()


def test_every_number_of_float16_its_neighbours_and_every_tie() -> None:
    exact = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (exact[1:] + exact[:-1]) / 2
    values = np.concatenate([exact, ties])
    for neighbours in (values, np.nextafter(values, np.float32(np.inf)), np.nextafter(values, np.float32(0))):
        assert same(neighbours.astype(np.float32))


@given(
    numpy_strategies.arrays(np.float32, numpy_strategies.array_shapes(max_dims=4), elements=st.floats(0, 1, width=32))
)
def test_weights_of_any_shape(array: NDArray[np.float32]) -> None:
    assert same(array)
    assert as_half(array).shape == array.shape


def test_more_than_a_block_and_views(generator: np.random.Generator) -> None:
    array = generator.random((3, BLOCK + 7), dtype=np.float32)
    assert same(array)
    assert same(array[:, ::3])
    assert same(array.T)


@pytest.mark.parametrize("value", [-1.0, -0.0, 65_519.9, 65_520.0, 1e9, np.inf, np.nan])
def test_what_attention_never_is_converts_too(value: float) -> None:
    assert same(np.array([0.5, value], dtype=np.float32))


def test_of_no_number_there_is_none() -> None:
    assert as_half(np.zeros((0, 3), np.float32)).shape == (0, 3)
