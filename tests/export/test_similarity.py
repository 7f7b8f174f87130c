import numpy as np
from scipy.spatial.distance import cosine
from scipy.stats import spearmanr

from export.similarity import pair_cosines, rank_correlations, row_cosines


def test_cosines_are_scipys_and_a_vector_of_zeros_has_none() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
    b[4] = 0
    found = row_cosines(a, b)
    np.testing.assert_allclose(found[:4], [1 - cosine(*rows) for rows in zip(a[:4], b[:4], strict=True)], atol=1e-6)
    assert np.isnan(found[4])
    np.testing.assert_array_equal(pair_cosines(np.concatenate([a, b])), found)


def test_rank_correlations_are_scipys_and_a_constant_row_has_none() -> None:
    generator = np.random.default_rng(0)
    ratings = generator.integers(0, 6, 80).astype(float)
    rows = np.stack([ratings + generator.normal(0, 2, 80), generator.normal(size=80), np.zeros(80)])
    found = rank_correlations(rows, ratings)
    np.testing.assert_allclose(found[:2], [spearmanr(row, ratings)[0] for row in rows[:2]], atol=1e-12)
    assert np.isnan(found[2])
