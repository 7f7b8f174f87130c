"""How far embeddings are from another network's, and what a search through an index of the other's costs."""

import numpy as np
import torch
from torch import Tensor

from export.similarity import rank_correlations, row_cosines
from model.analysis.arrays import Float64Array

DEPTH = 10
QUERIES_AT_ONCE = 256


def cosine_figures(found: Tensor, expected: Tensor) -> dict[str, float]:
    """Cosine of each vector with its counterpart, [N, D] each: the mean, the first percentile and the worst."""
    cosines = row_cosines(found.numpy(), expected.numpy())
    return {
        "cosine_mean": float(cosines.mean()),
        "cosine_first_percentile": float(np.quantile(cosines, 0.01)),
        "cosine_worst": float(cosines.min()),
    }


def spearman(left: Tensor, right: Tensor, ratings: Float64Array) -> float:
    """Rank correlation of the cosines of pairs with their ratings, x 100."""
    return 100 * float(rank_correlations(row_cosines(left.numpy(), right.numpy()), ratings))


def recall(queries: Tensor, documents: Tensor, *, depth: int = DEPTH) -> float:
    """Percent of the normalised queries whose own document, that of the same place, is among the `depth` nearest."""
    found = 0
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        scores = queries[start : start + QUERIES_AT_ONCE] @ documents.T
        own = scores[torch.arange(len(scores)), torch.arange(start, start + len(scores))]
        found += int(((scores >= own[:, None]).sum(dim=1) <= depth).sum())
    return 100 * found / len(queries)
