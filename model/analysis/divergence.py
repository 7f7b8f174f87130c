"""How unlike two heads attend: the Jensen-Shannon divergence of their rows (Clark et al. 2019, section 6).

JS(p, q) = KL(p || m) / 2 + KL(q || m) / 2 with m = (p + q) / 2, in nats: 0 for equal rows, ln 2 for rows without a key
in common. Here it is the mean over a text's queries; Clark et al. sum instead, over queries and documents, so their
figures grow with the corpus and these do not.
"""

import numpy as np

from model.analysis.arrays import Float32Array, Float64Array
from model.analysis.statistics import row_entropy


def jensen_shannon(weights: Float32Array) -> Float64Array:
    """Divergence of every head from every other on one text, mean over queries.

    Args:
        weights: [H, Q, K], rows that sum to 1.

    Returns:
        [H, H], symmetric, 0 on the diagonal, at most ln 2.
    """
    entropies = row_entropy(weights)  # [H, Q]
    heads = len(weights)
    divergences = np.zeros((heads, heads))
    for head in range(heads - 1):  # JS(p, q) = H(m) - (H(p) + H(q)) / 2, one head against all after it
        middle = row_entropy((weights[head] + weights[head + 1 :]) * np.float32(0.5))
        between = (middle - (entropies[head] + entropies[head + 1 :]) / 2).mean(axis=-1)
        divergences[head, head + 1 :] = np.clip(between, 0.0, np.log(2.0))
    symmetric: Float64Array = divergences + divergences.T
    return symmetric
