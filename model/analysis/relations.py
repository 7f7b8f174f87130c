"""Whether a head points along the arcs of a dependency parse, and what a rule without a head would score.

A relation's case is a dependent word with its head word, both given as places among a text's W words. Two predictions
of the dependent's head word are read from a head's map between words (Clark et al. 2019, section 5):

    dependent_to_head   argmax over j of a_dj: the word that the dependent d looks at most
    head_to_dependent   argmax over i of a_id: the word that looks at the dependent d most

The dependent itself and special tokens are no candidates. The rule to beat is the best fixed offset: "the head word
stands o places after the dependent", the o that scores highest for the relation.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from model.analysis.arrays import BoolArray, Float32Array, IntArray

DIRECTIONS = ("dependent_to_head", "head_to_dependent")


def predict_heads(weights: Float32Array, candidates: BoolArray) -> IntArray:
    """The head word that each head predicts for each word, by direction.

    Args:
        weights: [H, W, W] between words.
        candidates: [W], which words may be predicted.

    Returns:
        [2, H, W] places of words, in the order of `DIRECTIONS`.
    """
    allowed = np.broadcast_to(candidates, weights.shape[-2:]).copy()
    np.fill_diagonal(allowed, False)
    looks_at = np.where(allowed, weights, -1.0).argmax(axis=-1)
    looked_at_by = np.where(allowed.T, weights, -1.0).argmax(axis=-2)
    return np.stack([looks_at, looked_at_by])


def best_offset(offsets: Iterable[int]) -> tuple[int, float]:
    """The most frequent distance from dependent to head word, and its share; the nearer of equally frequent ones.

    Raises:
        ValueError: there is none.
    """
    counted = Counter(offsets)
    if not counted:
        raise ValueError("no case of the relation: it has no best offset")
    offset, hits = min(counted.items(), key=lambda item: (-item[1], abs(item[0]), -item[0]))
    return offset, hits / counted.total()
