"""The statistics of every head over a corpus, a text at a time.

`STATISTICS` of `model.analysis.statistics`, the patterns of `model.analysis.patterns`, and three of what heads move:

    output_norm          mean_i of ||sum_j a_ij f(x_j)||: length of what the head adds to a token
    special_norm_share   share of sum_ij a_ij ||f(x_j)|| that comes from special tokens (Kobayashi et al. 2020)
    weight_norm_ranks    Spearman over keys j between sum_i a_ij and sum_i a_ij ||f(x_j)||: below 1 where the head
                         looks at tokens that it takes little from
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from export.heads.capture import HeadsOfText
from export.heads.intervals import Estimate, RunningMean
from export.similarity import rank_correlations
from export.tokens import TokenizedText
from model.analysis.arrays import Float32Array, Float64Array
from model.analysis.patterns import offset_rate, rare_token, sink, variability
from model.analysis.statistics import STATISTICS, head_statistics

OFFSETS: Mapping[str, int] = {"previous_rate": -1, "self_rate": 0, "next_rate": 1}
MOVED = ("output_norm", "special_norm_share", "weight_norm_ranks")
REPORTED = (*STATISTICS, "sink", *OFFSETS, "rare_token", *MOVED, "variability")
FIRST_POSITIONS = 10  # as Vig & Belinkov: texts share few positions beyond them


class CorpusStatistics:
    """Takes texts one by one and estimates each statistic of each head."""

    def __init__(self, counts: Counter[int], *, causal: bool = False) -> None:
        """Starts with the corpus' token counts, which say what is rare, and whether queries see earlier keys only."""
        self._counts = counts
        self._causal = causal
        self._means = {name: RunningMean() for name in REPORTED}
        self._corners: list[Float32Array] = []

    def add(self, text: TokenizedText, heads: HeadsOfText, *, keep_corner: bool) -> None:
        """Takes one text; its first positions are kept in memory, for the variability, where `keep_corner` is set."""
        for name, values in self._of_text(text, heads).items():
            self._means[name].add(values)
        if keep_corner and len(text.ids) >= FIRST_POSITIONS:
            self._corners.append(heads.weights[:, :FIRST_POSITIONS, :FIRST_POSITIONS].copy())

    def estimates(self) -> dict[str, Estimate]:
        """Every statistic that some text defines, by name."""
        if self._corners:
            for values in variability(np.stack(self._corners)):
                self._means["variability"].add(values)
            self._corners.clear()
        return {name: found for name, mean in self._means.items() if (found := mean.estimate())}

    def _of_text(self, text: TokenizedText, heads: HeadsOfText) -> dict[str, Float64Array | None]:
        weights = heads.weights
        counts = np.array([self._counts[token] for token in text.ids.tolist()])
        common = head_statistics(
            weights, token_ids=text.ids, special=text.special, punctuation=text.punctuation, causal=self._causal
        )
        return {
            **{name: None if values is None else values.astype(np.float64) for name, values in common.items()},
            "sink": sink(weights),
            **{name: offset_rate(weights, offset) for name, offset in OFFSETS.items()},
            "rare_token": rare_token(weights, counts, text.special),
            **_moved(text, heads),
        }


def _moved(text: TokenizedText, heads: HeadsOfText) -> dict[str, Float64Array | None]:
    received = heads.weights.sum(axis=1, dtype=np.float64)  # [H, n] by each key
    moved = received * heads.value_norms
    total = moved.sum(axis=-1)
    total = np.where(total > 0, total, np.nan)  # a head that moves nothing has no share of it
    return {
        "output_norm": heads.output_norms.mean(axis=-1, dtype=np.float64),
        "special_norm_share": moved[:, text.special].sum(axis=-1) / total,
        "weight_norm_ranks": rank_correlations(received, moved) if len(text.ids) > 2 else None,
    }
