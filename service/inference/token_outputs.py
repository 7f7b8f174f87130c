"""What is computed outside the graph: further outputs of some embedders, and queries of some sparse models.

BGE-M3's weights of words and vectors of tokens are one dense layer each on the last hidden state, small beside the
network: they are computed in float32 for those answers that want them (Chen et al. 2024, M3-Embedding, section 3.2).
OpenSearch's inference-free models read a query by a table, which has one weight a word.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from model.artifact import FURTHER_OUTPUTS, Artifact
from service.inference.backend import Float32Array, Int64Array


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """The layers of an artifact. H is the hidden size, D the size of a token's vector.

    Attributes:
        sparse_weight: [H].
        sparse_bias: [1].
        vector_weight: [H, D].
        vector_bias: [D].
        unweighted_ids: special tokens, which are no words.
    """

    sparse_weight: Float32Array
    sparse_bias: Float32Array
    vector_weight: Float32Array
    vector_bias: Float32Array
    unweighted_ids: Int64Array

    @classmethod
    def load(cls, artifact: Artifact) -> Self | None:
        """Reads the artifact's layers; None if it has none."""
        if not artifact.manifest.token_outputs:
            return None
        return cls(**{"unweighted_ids": np.empty(0, np.int64), **_read(artifact)})

    def words(self, hidden: Float32Array, ids: Int64Array) -> dict[str, NDArray[Any]]:
        """The words of a text and their weights: `indices`, ascending, and `values`, both [words].

        A token that comes more than once has its largest weight; what has none is left out. `hidden` is the last hidden
        state [n, H], `ids` are its tokens' [n].
        """
        weights = hidden @ self.sparse_weight + self.sparse_bias
        kept = (weights > 0) & ~np.isin(ids, self.unweighted_ids)
        indices, places = np.unique(ids[kept], return_inverse=True)
        values = np.zeros(len(indices), np.float32)
        np.maximum.at(values, places, weights[kept])
        return {"indices": indices.astype(np.int32), "values": values}

    def vectors(self, hidden: Float32Array) -> Float32Array:
        """A vector for each token but the first, [n - 1, D], not normalised; `hidden` is [n, H]."""
        found: Float32Array = hidden[1:] @ self.vector_weight + self.vector_bias
        return found


@dataclass(frozen=True, slots=True)
class QueryTable:
    """A weight for each word of a query, whatever else it holds.

    Attributes:
        weights: [V].
        ends: ids of the special tokens that begin and end every input, which do not count; None for none.
    """

    weights: Float32Array
    ends: tuple[int | None, int | None]

    @classmethod
    def load(cls, artifact: Artifact, ends: tuple[int | None, int | None]) -> Self | None:
        """Reads the artifact's table; None if the network reads its queries."""
        if not artifact.manifest.query_table:
            return None
        weights, vocab_size = _read(artifact)["query_weights"], artifact.manifest.config.vocab_size
        return cls(np.pad(weights, (0, vocab_size - len(weights))), ends)  # networks may have more ids than words

    def words(self, ids: Int64Array) -> Float32Array:
        """The ids of a text's words, ascending, and their weights, [words, 2], in the form of the graph's output."""
        begin, end = self.ends
        own = np.unique(ids[begin is not None : len(ids) - (end is not None)])
        weights = self.weights[own]
        found: Float32Array = np.stack([own.astype(np.float32), weights], axis=1)[weights != 0]
        return found


def _read(artifact: Artifact) -> dict[str, NDArray[Any]]:
    with np.load(artifact.path(FURTHER_OUTPUTS), allow_pickle=False) as file:
        return dict(file)
