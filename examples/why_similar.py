"""Why are two texts similar? Asked with `python -m examples.why_similar "A cat sat down." "The kitten is resting."`.

The similarity is a sum over pairs of tokens, one of each text, special tokens included. The table shows the largest
terms; `polyhead explain` prints the same, and as JSON.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from examples.command import parser_of
from polyhead import ArtifactError, Engine, ServiceError, SourceError


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line; a failure is one line."""
    parser = parser_of("why_similar", __doc__)
    parser.add_argument("a", help="a text")
    parser.add_argument("b", help="another")
    parser.add_argument("--top", type=int, default=10, help="pairs to print (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        run(options)
    except (ArtifactError, ServiceError, SourceError, OSError) as error:  # no such model, or one for something else
        parser.exit(1, f"{parser.prog}: {error}\n")


def run(options: argparse.Namespace) -> None:
    """Explains the similarity of both texts, and prints the table."""
    with Engine.load(options.model) as engine:
        explained = engine.explain(options.a, options.b)
    similarity, cells = float(explained.similarity), explained.contributions
    print(f"similarity {similarity:.4f} = sum over {cells.size} pairs of tokens, of which the largest:")
    rest = float(cells.sum(dtype=np.float64))
    order = np.argsort(-cells, axis=None)[: options.top]
    for row, column in zip(*np.unravel_index(order, cells.shape), strict=True):
        value = float(cells[row, column])
        rest -= value
        left, right = explained.a.tokens[row], explained.b.tokens[column]
        print(f"{value:+.4f}  {value / similarity:6.1%}  {left:>16}  {right}")
    print(f"{rest:+.4f}  {rest / similarity:6.1%}  {'all others':>16}")


if __name__ == "__main__":
    main()
