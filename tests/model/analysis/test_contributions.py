from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.analysis.arrays import Float32Array
from model.analysis.contributions import contributions, pooled_parts, token_shares
from model.config import Pooling
from model.tasks import POOLINGS

NAMES: tuple[Pooling, ...] = get_args(Pooling)
AXES = np.eye(3, dtype=np.float32)


def pooled(hidden: Float32Array, pooling: Pooling) -> torch.Tensor:
    """As the encoder itself pools, [D]."""
    return POOLINGS[pooling](torch.from_numpy(hidden)[None], torch.tensor([len(hidden)]))[0]


@st.composite
def two_texts(draw: st.DrawFn) -> tuple[Float32Array, Float32Array]:
    """Hidden states [n, D] and [m, D] around a common mean, as an encoder's are."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    width = draw(st.sampled_from([1, 8, 384]))
    centre = generator.standard_normal(width, dtype=np.float32)
    lengths = [draw(st.integers(1, 40)) for _ in range(2)]
    first, second = (centre + generator.standard_normal((count, width), dtype=np.float32) for count in lengths)
    return first, second


def test_cells_by_pooling() -> None:
    cells = contributions(AXES[[0, 1]], AXES[[0, 0, 2]], pooling="mean", similarity="dot")
    np.testing.assert_allclose(cells, np.array([[1, 1, 0], [0, 0, 0]]) / 6, rtol=1e-6)
    a = np.array([[5, 0, 2], [1, 3, 2]], dtype=np.float32)  # wins: 0, 1, and the first of equals 0
    b = np.array([[1, 1, 0], [2, 0, 7]], dtype=np.float32)  # wins: 1, 0, 1
    cells = contributions(a, b, pooling="max", similarity="dot")
    np.testing.assert_array_equal(cells, [[0, 5 * 2 + 2 * 7], [3 * 1, 0]])
    one: dict[Pooling, tuple[int, int]] = {"cls": (0, 0), "last": (1, 2)}
    for pooling, cell in one.items():
        cells = contributions(AXES[[0, 0]] + 1, AXES[[0, 1, 0]] + 1, pooling=pooling)
        assert np.argwhere(cells).tolist() == [list(cell)]
        assert cells[cell] == pytest.approx(1.0)


@settings(deadline=None)
@given(two_texts(), st.sampled_from(NAMES))
def test_cells_sum_to_the_similarity_parts_to_the_pooled_vector_and_shares_to_one(
    drawn: tuple[Float32Array, Float32Array], pooling: Pooling
) -> None:
    a, b = drawn
    first, second = (pooled(hidden, pooling).double() for hidden in drawn)
    cosine = torch.nn.functional.cosine_similarity(first, second, dim=0).item()
    cells = contributions(a, b, pooling=pooling)
    assert (cells.shape, cells.dtype.name) == ((len(a), len(b)), "float32")
    assert cells.sum(dtype=np.float64) == pytest.approx(cosine, abs=1e-5)
    dot = contributions(a, b, pooling=pooling, similarity="dot").sum(dtype=np.float64)
    assert dot == pytest.approx((first @ second).item(), rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(pooled_parts(a, pooling).sum(axis=0), first.numpy(), atol=1e-5)
    shares = token_shares(a, pooling)
    assert shares.shape == (len(a),)
    assert shares.sum() == pytest.approx(1.0, abs=1e-12)


def test_shares_by_pooling() -> None:
    hidden = np.array([[5, 0, 2, 9], [1, 3, 2, 1]], dtype=np.float32)
    shares = {pooling: token_shares(hidden, pooling).tolist() for pooling in NAMES}
    assert shares == {"mean": [0.5, 0.5], "cls": [1, 0], "max": [0.75, 0.25], "last": [0, 1]}


def test_refuses_a_cosine_with_nothing() -> None:
    opposite = np.concatenate([AXES, -AXES])
    with pytest.raises(ValueError, match="pooled vector is 0, its cosine with anything is undefined: ask for the dot"):
        contributions(AXES, opposite, pooling="mean")
    assert contributions(AXES, opposite, pooling="mean", similarity="dot").sum() == pytest.approx(0.0, abs=1e-7)
