"""Which heads do the same: mean Jensen-Shannon divergences, a tree of heads, and a map of them."""

from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from scipy.spatial.distance import squareform

from model.analysis.arrays import Float32Array, Float64Array
from model.analysis.divergence import jensen_shannon
from model.analysis.scaling import classical_scaling

ALIKE = 0.05  # nats, 7 % of ln 2: groups of heads whose mean divergence stays below are listed as alike


@dataclass(frozen=True, slots=True)
class Redundancy:
    """How unlike heads are.

    Attributes:
        divergences: [H, H] in nats, mean over queries, then texts.
        texts: how many.
        tree: [H-1, 4], average linkage in SciPy's form: two joined, at which height, heads below.
        order: [H], heads as the tree's leaves from left to right.
        groups: [H], number of the group of heads that are alike; a head like no other is alone in its group.
        points: [H, 2], classical scaling of the square roots of the divergences, which are a metric a query.
        stress: how wrong the map is, Kruskal's stress-1.
    """

    divergences: Float64Array
    texts: int
    tree: Float64Array
    order: list[int]
    groups: list[int]
    points: Float64Array
    stress: float


class RunningDivergence:
    """Mean divergences over texts that come one by one."""

    def __init__(self) -> None:
        self.texts = 0
        self._sum: Float64Array = np.zeros((0, 0))

    def add(self, weights: Float32Array) -> None:
        """Takes one text's weights [H, n, n]."""
        found = jensen_shannon(weights)
        self._sum = found if not self.texts else self._sum + found
        self.texts += 1

    def result(self) -> Float64Array:
        """The mean so far, [H, H]."""
        return self._sum / max(self.texts, 1)


def describe_redundancy(divergences: Float64Array, texts: int) -> Redundancy:
    """Tree, groups and map of heads [H, H]."""
    heads = len(divergences)
    points, stress = classical_scaling(np.sqrt(divergences))
    if heads < 2:
        return Redundancy(divergences, texts, np.zeros((0, 4)), [*range(heads)], [1] * heads, points, stress)
    tree = linkage(squareform(divergences, checks=False), method="average")
    order = [int(leaf) for leaf in leaves_list(tree)]
    groups = [int(group) for group in fcluster(tree, ALIKE, criterion="distance")]
    return Redundancy(divergences, texts, tree, order, groups, points, stress)


def mean_divergences(divergences: Float64Array, num_heads: tuple[int, ...]) -> dict[str, float | None]:
    """Mean over pairs of heads of one layer, and over pairs of different layers; None without such a pair."""
    layer = np.repeat(np.arange(len(num_heads)), num_heads)
    same = layer[:, np.newaxis] == layer
    pairs = np.triu(np.ones_like(same), k=1)
    chosen = {"same_layer": same & pairs, "different_layers": ~same & pairs}
    return {name: float(divergences[mask].mean()) if mask.any() else None for name, mask in chosen.items()}
