"""Why are two texts similar? Asked with `python -m examples.why_similar "A cat sat down." "The kitten is resting."`.

The similarity is a sum over pairs of tokens, one of each text, special tokens included. The table shows the largest
terms; all others stand together in its last line.
"""

import argparse
import os
from collections.abc import Sequence

import numpy as np

from polyhead import ArtifactError, Engine, Explained, ServiceError

Pair = tuple[float, str, str]


def pairs_of(explained: Explained) -> list[Pair]:
    """What each pair of tokens adds to the similarity, largest first."""
    cells = explained.contributions
    pairs = [
        (float(value), explained.a.tokens[row], explained.b.tokens[column])
        for (row, column), value in np.ndenumerate(cells)
    ]
    return sorted(pairs, key=lambda pair: -pair[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line; a failure is one line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.why_similar", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", help="a text")
    parser.add_argument("b", help="another")
    default = os.environ.get("POLYHEAD_MODEL", "artifacts/all-MiniLM-L6-v2")
    parser.add_argument("--model", default=default, help="artifact (POLYHEAD_MODEL; default: %(default)s)")
    parser.add_argument("--top", type=int, default=10, help="pairs to print (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.top < 1:
        parser.error(f"--top {options.top}: expected at least 1")
    try:
        run(options)
    except (ArtifactError, ServiceError, OSError) as error:  # no such model, or one for something else
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: interrupted\n")


def run(options: argparse.Namespace) -> None:
    """Encodes both texts, prints the table."""
    with Engine.load(options.model) as engine:
        explained = engine.explain(options.a, options.b)
    similarity, pairs = float(explained.similarity), pairs_of(explained)
    print(f"similarity {similarity:.4f} = sum over {len(pairs)} pairs of tokens, of which the largest:")
    for value, left, right in pairs[: options.top]:
        print(f"{value:+.4f}  {value / similarity:6.1%}  {left:>16}  {right}")
    rest = sum(value for value, _, _ in pairs[options.top :])
    print(f"{rest:+.4f}  {rest / similarity:6.1%}  {'all others':>16}")


if __name__ == "__main__":
    main()
