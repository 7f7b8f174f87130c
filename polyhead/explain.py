"""`polyhead explain A B`: how similar two texts are, and which pairs of their tokens make them so."""

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import orjson

from model.manifest import ArtifactError
from polyhead import Explained
from polyhead.artifact_option import add_model, chosen_artifact
from polyhead.complaint import complain
from polyhead.loading import load_engine
from service.errors import ServiceError

PROGRAM = "polyhead explain"
DESCRIPTION = """\
Says why two texts are similar. The similarity is a sum over pairs of tokens, one of each text, special tokens included.
The table shows the largest terms, as numbers and as shares of the sum; all others stand together in its last line."""
EXAMPLES = """\
examples:
  polyhead explain "A cat sat down." "The kitten is resting."
  polyhead explain --json "A cat sat down." "The kitten is resting."    all of it, as `POST /explain` answers"""

Pair = tuple[float, str, str]


def parser() -> argparse.ArgumentParser:
    """The command line, described."""
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("a", metavar="A", help="a text")
    made.add_argument("b", metavar="B", help="another")
    add_model(made)
    made.add_argument("--top", type=int, default=10, help="pairs to print (default: %(default)s)")
    made.add_argument("--json", action="store_true", help="every pair, as JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if options.top < 1:
        made.error(f"--top {options.top}: expected at least 1")
    try:
        with load_engine(chosen_artifact(options)) as engine:
            explained = engine.explain(options.a, options.b)
    except ServiceError as error:
        return complain(PROGRAM, error.message)
    except ArtifactError as error:
        return complain(PROGRAM, error)
    sys.stdout.write(as_json(explained) if options.json else "\n".join(table(explained, options.top)) + "\n")
    return 0


def largest_pairs(explained: Explained, top: int) -> list[Pair]:
    """What pairs of tokens add to the similarity, largest first."""
    cells = explained.contributions
    places = np.argsort(-cells, axis=None, kind="stable")[:top]
    rows, columns = np.unravel_index(places, cells.shape)
    return [
        (float(cells[row, column]), explained.a.tokens[row], explained.b.tokens[column])
        for row, column in zip(rows, columns, strict=True)
    ]


def table(explained: Explained, top: int) -> Iterator[str]:
    """The lines to print."""
    similarity, pairs = float(explained.similarity), largest_pairs(explained, top)
    yield f"similarity {similarity:.4f} = sum over {explained.contributions.size} pairs of tokens, the largest:"
    for value, left, right in pairs:
        yield f"{value:+.4f}  {_share(value, similarity)}  {left:>16}  {right}"
    rest = float(explained.contributions.sum(dtype=np.float64)) - sum(value for value, _, _ in pairs)
    yield f"{rest:+.4f}  {_share(rest, similarity)}  {'all others':>16}"


def as_json(explained: Explained) -> str:
    """All of it, as `POST /explain` answers it."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(explained.document(), option=options).decode()


def _share(value: float, similarity: float) -> str:
    return f"{value / similarity:6.1%}" if similarity else f"{'':6}"
