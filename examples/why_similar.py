"""Why are two texts similar? Asked with `python -m examples.why_similar "A cat sat down." "The kitten is resting."`.

The similarity is a sum over pairs of tokens, one of each text, special tokens included. The table shows the largest
terms; all others stand together in its last line.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model.analysis.contributions import contributions
from model.artifact import ArtifactError
from polyhead import Engine

Pair = tuple[float, str, str]


def explain(engine: Engine, a: str, b: str) -> tuple[float, list[Pair]]:
    """The cosine of two texts, and what each pair of their tokens adds to it, largest first."""
    config = engine.config
    encoded = engine.encode([a, b], output="tokens", normalize=False)  # the tokens' vectors before pooling
    cells = contributions(
        *(np.asarray(vectors) for vectors in encoded.embeddings), pooling=config.pooling, projection=config.projection
    )
    tokens = [engine.tokenizer.tokens(item) for item in engine.tokenizer.encode_now([a, b])]
    order = np.argsort(-cells, axis=None)
    return float(cells.sum(dtype=np.float64)), [pair(cells, int(place), *tokens) for place in order]


def pair(cells: NDArray[np.float32], place: int, a: list[str], b: list[str]) -> Pair:
    """One cell [n, m] of the sum with its two tokens."""
    row, column = divmod(place, cells.shape[1])
    return float(cells[row, column]), a[row], b[column]


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line; a failure is one line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.why_similar", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", help="a text")
    parser.add_argument("b", help="another")
    parser.add_argument("--model", default="artifacts/all-MiniLM-L6-v2", help="artifact (default: %(default)s)")
    parser.add_argument("--top", type=int, default=10, help="pairs to print (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.top < 1:
        parser.error(f"--top {options.top}: expected at least 1")
    try:
        run(options)
    except (ArtifactError, OSError) as error:  # no such model
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: interrupted\n")


def run(options: argparse.Namespace) -> None:
    """Encodes both texts, prints the table."""
    with Engine.load(options.model) as engine:
        similarity, pairs = explain(engine, options.a, options.b)
    print(f"similarity {similarity:.4f} = sum over {len(pairs)} pairs of tokens, of which the largest:")
    for value, left, right in pairs[: options.top]:
        print(f"{value:+.4f}  {value / similarity:6.1%}  {left:>16}  {right}")
    rest = sum(value for value, _, _ in pairs[options.top :])
    print(f"{rest:+.4f}  {rest / similarity:6.1%}  {'all others':>16}")


if __name__ == "__main__":
    main()
