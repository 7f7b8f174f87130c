"""Points in the plane whose distances are near given ones: classical multidimensional scaling (Torgerson 1952)."""

import numpy as np

from model.analysis.arrays import Float64Array


def classical_scaling(distances: Float64Array, dimensions: int = 2) -> tuple[Float64Array, float]:
    """A map of things whose distances from each other are known.

    Args:
        distances: [N, N], symmetric, 0 on the diagonal.
        dimensions: of the map.

    Returns:
        [N, dimensions], centred, each axis with its largest value above 0 so that equal distances give equal maps; and
        Kruskal's stress-1: root of the squared errors of the map's distances over the squared distances, 0 where the
        map is exact.
    """
    size = len(distances)
    centring = np.eye(size) - 1 / max(size, 1)
    products = -0.5 * centring @ distances**2 @ centring
    values, vectors = np.linalg.eigh((products + products.T) / 2)
    largest = np.argsort(values)[::-1][:dimensions]
    points = np.zeros((size, dimensions))
    points[:, : len(largest)] = vectors[:, largest] * np.sqrt(np.maximum(values[largest], 0.0))
    signs = np.sign(points[np.abs(points).argmax(axis=0), np.arange(dimensions)]) if size else np.ones(dimensions)
    points *= np.where(signs == 0, 1.0, signs)
    return points, _stress(distances, points)


def _stress(distances: Float64Array, points: Float64Array) -> float:
    found = np.linalg.norm(points[:, np.newaxis] - points, axis=-1)
    total = float((distances**2).sum())
    return float(np.sqrt(((found - distances) ** 2).sum() / total)) if total else 0.0
