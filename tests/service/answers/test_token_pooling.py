import numpy as np
import pytest
import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from service.answers.vectors import pool_tokens, ward_clusters

SIZES = (1, 2, 3, 9, 40, 150)


def draw(count: int, generator: np.random.Generator) -> np.ndarray:
    vectors = generator.standard_normal((count, 12)).astype(np.float32)
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


@pytest.mark.parametrize("factor", [1, 1.5, 2, 5, 1000])
def test_pooled_vectors_are_those_of_sentence_transformers(factor: float, generator: np.random.Generator) -> None:
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling  # noqa: PLC0415 - seconds

    reference = HierarchicalTokenPooling(factor)
    for count in SIZES:
        vectors = draw(count, generator)
        found, rows = pool_tokens(vectors, factor)
        expected = reference.pool_one(torch.from_numpy(vectors)).numpy()
        assert found.shape == expected.shape
        distances = np.abs(found[:, np.newaxis] - expected[np.newaxis]).max(axis=2)
        assert distances.min(axis=1).max() < 1e-6  # the same vectors, in the order of their first tokens
        assert sorted(set(rows.tolist())) == list(range(len(found)))
        assert rows[0] == 0
        for row, mean in enumerate(found):
            own = vectors[rows == row].mean(axis=0)
            np.testing.assert_allclose(own / np.linalg.norm(own), mean, atol=1e-6)


def test_clusters_are_scipy_s(generator: np.random.Generator) -> None:
    for count in SIZES[2:]:
        vectors = draw(count, generator)
        distances = np.clip(1 - vectors @ vectors.T, 0, 2).astype(np.float64)
        linkage = hierarchy.linkage(squareform(distances, checks=False), method="ward")
        for most in (1, 2, count // 2, count - 1):
            expected = hierarchy.fcluster(linkage, t=most, criterion="maxclust")
            found = ward_clusters(distances.copy(), most)
            assert len({*zip(found.tolist(), expected.tolist(), strict=True)}) == len(set(found.tolist())) == most
