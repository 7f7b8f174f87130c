"""Weights between words instead of tokens (Clark et al. 2019, section 4.1, "token-token to word-word").

What a word receives is the sum over its pieces; what it gives is the mean over its pieces: so rows still sum to 1. It
does not know texts: which tokens belong together comes as the tokenizer's word ids.
"""

from collections.abc import Sequence

import numpy as np

from model.analysis.arrays import Float32Array

Span = tuple[int, int]
"""[start, end): of tokens, or of characters."""


def find_words(word_ids: Sequence[int | None]) -> list[Span]:
    """The words of a text as spans of tokens, in order, every token in exactly one.

    Neighbours with the same id are one word; a special token, whose id is None, is a word of its own. Ids may start
    again for the second text of a pair: the special token in between keeps the words apart.

    Args:
        word_ids: each token's word, as `Encoding.word_ids` of the tokenizers library.
    """
    words: list[Span] = []
    previous: int | None = None
    for token, word_id in enumerate(word_ids):
        if word_id is not None and word_id == previous:
            words[-1] = (words[-1][0], token + 1)
        else:
            words.append((token, token + 1))
        previous = word_id
    return words


def to_words(weights: Float32Array, words: Sequence[Span], queries: Sequence[Span] | None = None) -> Float32Array:
    """Token weights as word weights: the sum over a word's keys, the mean over a word's queries.

    Args:
        weights: [..., Q, K].
        words: spans of the K keys, as `find_words` gives.
        queries: spans of the Q rows; None where the rows are the same tokens as the keys. For the first word's row
            alone, give its tokens' rows and `[words[0]]`.

    Returns:
        [..., W of queries, W]; rows that sum to 1 still do.

    Raises:
        ValueError: the spans do not cover the axis.
    """
    queries = words if queries is None else queries
    keys_summed = np.add.reduceat(weights, _starts(words, weights.shape[-1], "keys"), axis=-1, dtype=np.float64)
    summed = np.add.reduceat(keys_summed, _starts(queries, weights.shape[-2], "queries"), axis=-2)
    pieces = np.array([end - start for start, end in queries], dtype=np.float64)
    return (summed / pieces[:, np.newaxis]).astype(np.float32)


def word_offsets(words: Sequence[Span], offsets: Sequence[Span]) -> list[Span]:
    """Where each word stands in the text, in characters: from its first token's start to its last token's end.

    Args:
        words: spans of tokens.
        offsets: each token's [start, end) in the text; (0, 0) for special tokens, which it stays.
    """
    return [(offsets[start][0], offsets[end - 1][1]) for start, end in words]


def _starts(spans: Sequence[Span], size: int, axis: str) -> list[int]:
    ends = [0, *(end for _, end in spans)]
    starts = [start for start, _ in spans]
    if starts != ends[:-1] or ends[-1] != size or any(start >= end for start, end in spans):
        raise ValueError(f"the words cover {ends[-1]} tokens one after the other, expected all {size} {axis}")
    return starts
