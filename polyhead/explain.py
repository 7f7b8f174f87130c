"""`polyhead explain A B`: how similar two texts are, and which pairs of their tokens make them so."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson

from polyhead import Explained
from polyhead.models import load_engine
from polyhead.output import say, write

Pair = tuple[float, str, str]


def explain(a: str, b: str, model: Path, *, top: int, as_json: bool) -> None:
    """Prints the largest terms of a similarity, or every one as JSON; says which texts were cut."""
    with load_engine(model) as engine:
        explained = engine.explain(a, b)
        longest = engine.manifest.max_sequence_length
    if as_json:
        options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        write(orjson.dumps(explained.document(), option=options))
    else:
        write("\n".join(table(explained, top)) + "\n")
    cut = explained.a.truncated + explained.b.truncated
    if cut:
        say(f"polyhead explain: {cut} of 2 texts were cut to the {longest} tokens that the model reads")


def table(explained: Explained, top: int) -> Iterator[str]:
    """The lines to print."""
    similarity, pairs = float(explained.similarity), largest_pairs(explained, top)
    yield f"similarity {similarity:.4f} = sum over {explained.contributions.size} pairs of tokens, the largest:"
    for value, left, right in pairs:
        yield f"{value:+.4f}  {_share(value, similarity)}  {left:>16}  {right}"
    rest = float(explained.contributions.sum(dtype=np.float64)) - sum(value for value, _, _ in pairs)
    yield f"{rest:+.4f}  {_share(rest, similarity)}  {'all others':>16}"


def largest_pairs(explained: Explained, top: int) -> list[Pair]:
    """What pairs of tokens add to the similarity, largest first."""
    cells = explained.contributions
    places = np.argsort(-cells, axis=None, kind="stable")[:top]
    rows, columns = np.unravel_index(places, cells.shape)
    return [
        (float(cells[row, column]), explained.a.tokens[row], explained.b.tokens[column])
        for row, column in zip(rows, columns, strict=True)
    ]


def _share(value: float, similarity: float) -> str:
    return f"{value / similarity:6.1%}" if similarity else f"{'':6}"
