import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from model.analysis.divergence import jensen_shannon


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 100))
def test_equals_scipys_over_rows(heads: int, size: int, seed: int) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.full(size, 0.3), (heads, size)).astype(np.float32)
    expected = np.array([[(jensenshannon(a, b, axis=-1) ** 2).mean() for b in weights] for a in weights])
    found = jensen_shannon(weights)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_array_equal(found, found.T)
    assert (found.diagonal() == 0).all()


def test_the_same_is_0_and_nothing_in_common_is_ln_2() -> None:
    weights = np.stack([np.eye(4), np.eye(4), np.eye(4)[[1, 2, 3, 0]]]).astype(np.float32)
    found = jensen_shannon(weights)
    assert found[0, 1] == 0
    assert found[0, 2] == pytest.approx(np.log(2), rel=1e-6)
