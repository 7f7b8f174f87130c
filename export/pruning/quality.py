"""What pruning is judged by, on text that the choice of heads did not see.

With rated pairs: Spearman's correlation of the cosines with the ratings, x 100. Without: the cosine of the embedding
with the whole network's, x 100, mean over texts. Either way a point is a hundredth, and the whole network is where the
loss is 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from export.heads.importance import embed
from export.heads.pairs import TokenizedPairs
from export.similarity import pair_cosines, rank_correlations, row_cosines
from export.tokens import TokenizedText
from model.analysis.arrays import Float64Array
from model.encoder import Encoder

Measure = Literal["spearman", "cosine"]


@dataclass(frozen=True, slots=True)
class PruningQuality:
    """Of one network: the measure that was asked for, and how far its embeddings are from the whole network's.

    Attributes:
        points: Spearman x 100, or mean cosine x 100.
        cosine_mean: to the whole network's embeddings, over texts.
        cosine_worst: the lowest.
    """

    points: float
    cosine_mean: float
    cosine_worst: float


@dataclass(frozen=True, slots=True)
class Judge:
    """Measures networks on the same texts.

    Attributes:
        texts: what is embedded; with ratings the pairs' left texts, then the right ones.
        ratings: of the pairs, or None.
        whole: embeddings [texts, D] of the whole network.
    """

    texts: Sequence[TokenizedText]
    ratings: Float64Array | None
    whole: Float64Array = field(repr=False)

    @property
    def measure(self) -> Measure:
        """What `PruningQuality.points` are."""
        return "cosine" if self.ratings is None else "spearman"

    def judge(self, encoder: Encoder) -> PruningQuality:
        """Embeds every text and compares."""
        return self._compare(embed(encoder, self.texts))

    def judge_whole(self) -> PruningQuality:
        """The same of the whole network, which is embedded already."""
        return self._compare(self.whole)

    def _compare(self, embeddings: Float64Array) -> PruningQuality:
        cosines = row_cosines(embeddings, self.whole)
        points = 100 * float(cosines.mean())
        if self.ratings is not None:
            points = 100 * float(np.nan_to_num(rank_correlations(pair_cosines(embeddings), self.ratings)))
        return PruningQuality(points, float(cosines.mean()), float(cosines.min()))


def judge_by_pairs(encoder: Encoder, pairs: TokenizedPairs) -> Judge:
    """A judge by rated pairs."""
    return Judge(pairs.texts, pairs.ratings, embed(encoder, pairs.texts))


def judge_by_texts(encoder: Encoder, texts: Sequence[TokenizedText]) -> Judge:
    """A judge by plain texts."""
    return Judge(texts, None, embed(encoder, texts))
