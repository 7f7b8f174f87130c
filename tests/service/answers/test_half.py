"""Bit for bit what NumPy's own conversion gives, where rounding is hard and where it is not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from service.answers.half import BLOCK, as_half


def same(array: NDArray[np.float32]) -> bool:
    with np.errstate(over="ignore"):
        return as_half(array).tobytes() == array.astype(np.float16).tobytes()


def test_every_number_of_float16_its_neighbours_and_every_tie() -> None:
    exact = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (exact[1:] + exact[:-1]) / 2
    values = np.concatenate([exact, ties])
    for neighbours in (values, np.nextafter(values, np.float32(np.inf)), np.nextafter(values, np.float32(0))):
        assert same(neighbours.astype(np.float32))


@given(arrays.arrays(np.float32, arrays.array_shapes(max_dims=4), elements=st.floats(0, 1, width=32)))
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


def test_nothing() -> None:
    assert as_half(np.zeros((0, 3), np.float32)).shape == (0, 3)
