"""Fewer vectors for a document: tokens whose vectors are alike share their mean, so that an index takes less room.

Ward's hierarchical clustering on cosine distances, as PyLate's `pool_factor` and sentence-transformers'
`HierarchicalTokenPooling` have it (Clavié et al. 2024): the first token keeps its vector, the others become one vector
for each of `tokens // factor` clusters.
"""

import numpy as np
from numpy.typing import NDArray

from service.inference.backend import Float32Array, Int64Array

PROTECTED = 1  # tokens at the start that keep their own vector: [CLS]
SMALLEST_LENGTH = 1e-12


def pool_tokens(vectors: Float32Array, factor: float) -> tuple[Float32Array, Int64Array]:
    """Vectors [n, D] as fewer ones [m, D], all of length 1, and which of these each token is in, [n].

    Args:
        vectors: of length 1.
        factor: how many tokens share a vector, on average; 1 changes nothing.
    """
    rest = vectors[PROTECTED:]
    wanted = max(int(len(rest) // factor), 1)
    if wanted >= len(rest):
        return vectors, np.arange(len(vectors))
    clusters = ward_clusters(np.clip(1 - rest @ rest.T, 0, 2).astype(np.float64), wanted)
    rows = np.concatenate([np.arange(PROTECTED), clusters + PROTECTED])
    sums = np.zeros((rows.max() + 1, vectors.shape[1]), dtype=np.float32)
    np.add.at(sums, rows, vectors)
    means = sums / np.bincount(rows)[:, np.newaxis].astype(np.float32)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return means / np.maximum(lengths, np.float32(SMALLEST_LENGTH)), rows


def ward_clusters(distances: NDArray[np.float64], most: int) -> Int64Array:
    """The cluster of each point, [n], numbered in the order of their first points; at most `count`.

    Args:
        distances: [n, n], symmetric; they are overwritten.
        most: clusters; fewer where several merges are equally near.
    """
    merges = _ward_merges(distances)
    heights = np.sort([height for _, _, height in merges])
    limit = heights[len(merges) - most]
    parents = np.arange(len(distances))
    for one, other, height in merges:
        if height <= limit:
            parents[parents == parents[other]] = parents[one]
    _, first, numbers = np.unique(parents, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[numbers]


def _ward_merges(distances: NDArray[np.float64]) -> list[tuple[int, int, float]]:
    """Every merge as a point of each side and the squared height, by chains of nearest neighbours (Murtagh 1983).

    The squared distance of a cluster to the union of two others follows from theirs (Lance and Williams 1967).
    """
    count = len(distances)
    np.square(distances, out=distances)
    np.fill_diagonal(distances, np.inf)
    sizes = np.ones(count)
    chain: list[int] = []
    merges: list[tuple[int, int, float]] = []
    alive = np.ones(count, dtype=bool)
    while len(merges) < count - 1:
        if not chain:
            chain.append(int(alive.argmax()))
        while True:
            last = chain[-1]
            nearest = int(distances[last].argmin())
            if len(chain) > 1 and distances[last, chain[-2]] <= distances[last, nearest]:
                break
            chain.append(nearest)
        one, other = sorted((chain.pop(), chain.pop()))
        height = distances[one, other]
        merges.append((one, other, float(height)))
        both = sizes[one] + sizes[other]
        union = (sizes + sizes[one]) * distances[one] + (sizes + sizes[other]) * distances[other] - sizes * height
        union /= sizes + both
        union[[one, other]] = np.inf
        union[~alive] = np.inf
        distances[one] = distances[:, one] = union
        distances[other] = distances[:, other] = np.inf
        sizes[one], alive[other] = both, False
    return merges
