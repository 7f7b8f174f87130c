"""A table of contributions, made smaller: tokens joined to words, or only the largest pairs."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from model.analysis.arrays import Float32Array
from model.analysis.words import Span

Number = TypeVar("Number", np.float32, np.float64)


def sum_words(cells: NDArray[Number], words: Sequence[Span] | None, axis: int) -> NDArray[Number]:
    """Contributions of tokens along an axis as those of words; entries behind the words' tokens stay as they are.

    Args:
        cells: any shape, with the tokens along the axis and perhaps the biases' entry behind them.
        words: spans of the tokens, one after the other from 0 on; None leaves the tokens.
        axis: which.
    """
    if words is None:
        return cells
    starts = [start for start, _ in words] + list(range(words[-1][1], cells.shape[axis]))
    return np.add.reduceat(cells, starts, axis=axis, dtype=np.float64).astype(cells.dtype)


def largest_pairs(cells: Float32Array, count: int) -> tuple[list[dict[str, Any]], float]:
    """The largest cells of a table [n, m], largest first, and the sum of all others."""
    places = np.argsort(-cells, axis=None, kind="stable")[:count]
    rows, columns = np.unravel_index(places, cells.shape)
    values = cells[rows, columns]
    rest = float(cells.sum(dtype=np.float64) - values.sum(dtype=np.float64))
    pairs = zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True)
    return [{"a": a, "b": b, "contribution": value} for a, b, value in pairs], rest
