"""The flags of `polyhead train contrast` and `polyhead train classify`."""

import argparse
from pathlib import Path

from train.commands.options import count, positive, whole
from train.commands.running import run_recipe

CONTRAST_EXAMPLE = """\
example:
  polyhead train contrast --pairs pairs.tsv --batch-size 256 --chunk 32 --dimensions 384 128 64 --output mine
  polyhead export mine --output artifacts/mine

A row of pairs.tsv or pairs.csv is anchor, positive, and any negatives; of pairs.jsonl an object of these names."""
CLASSIFY_EXAMPLE = """\
example:
  polyhead train classify --rows rated.csv --pairs --scores --output reranker     text, text, score
  polyhead train classify --rows labelled.csv --output classifier                 text, label
  polyhead export reranker --output artifacts/reranker"""


def add_contrast(made: argparse.ArgumentParser) -> None:
    """Adds the network and the pairs."""
    made.epilog = CONTRAST_EXAMPLE
    made.set_defaults(learning_rate=5e-5)
    made.add_argument(
        "model", nargs="?", metavar="MODEL", help="folder or hub id to begin with (default: the default model)"
    )
    made.add_argument("--pairs", type=Path, required=True, metavar="FILE", help=".csv, .tsv or .jsonl to learn from")
    made.add_argument("--held-out", type=Path, metavar="FILE", help="pairs to judge by (default: 5 %% of the pairs)")
    made.add_argument("--scale", type=positive, default=20.0, help="factor on cosines (default: %(default)g)")
    made.add_argument(
        "--chunk",
        type=whole,
        default=0,
        metavar="N",
        help="texts in memory at a time, for large batches (default: all)",
    )
    made.add_argument(
        "--dimensions", type=count, nargs="+", default=[], metavar="D", help="sizes at which vectors may be cut"
    )


def contrast(options: argparse.Namespace) -> None:
    """Train an embedder on pairs of texts that belong together.

    The other texts of a batch are the negatives, besides those that a row gives.
    """
    # torch takes seconds to import: --help and a wrong command line answer without it.
    from train.contrast import Contrast, ContrastSettings  # noqa: PLC0415

    settings = ContrastSettings(
        model=options.model,
        rows=options.pairs,
        held_out=options.held_out,
        scale=options.scale,
        chunk=options.chunk,
        dimensions=tuple(options.dimensions),
    )
    run_recipe(options, lambda run: Contrast(settings, run))


def add_classify(made: argparse.ArgumentParser) -> None:
    """Adds the network and the rows."""
    made.epilog = CLASSIFY_EXAMPLE
    made.set_defaults(learning_rate=5e-5)
    made.add_argument(
        "model", nargs="?", metavar="MODEL", help="folder or hub id to begin with (default: the default model)"
    )
    made.add_argument("--rows", type=Path, required=True, metavar="FILE", help=".csv, .tsv or .jsonl to learn from")
    made.add_argument("--held-out", type=Path, metavar="FILE", help="rows to judge by (default: 5 %% of the rows)")
    made.add_argument("--pairs", action="store_true", help="rows hold two texts")
    made.add_argument("--scores", action="store_true", help="targets are numbers, not names of labels")


def classify(options: argparse.Namespace) -> None:
    """Train a classifier of texts, or of pairs of texts.

    Targets are names of labels or, with --scores, numbers. With --pairs and --scores it makes a reranker.
    """
    # torch takes seconds to import: --help and a wrong command line answer without it.
    from train.classify import Classify, ClassifySettings  # noqa: PLC0415

    settings = ClassifySettings(
        model=options.model,
        rows=options.rows,
        held_out=options.held_out,
        pairs=options.pairs,
        kind="scores" if options.scores else "labels",
    )
    run_recipe(options, lambda run: Classify(settings, run))
