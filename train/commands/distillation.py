"""Flags of the commands in which a student learns from a teacher's vectors."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from train.commands.options import not_negative, share

if TYPE_CHECKING:  # torch takes seconds to import: --help and a wrong command line answer without it
    from train.distillation import Weights


def add_material(made: argparse.ArgumentParser) -> None:
    """Adds the texts, and what counts how much."""
    made.add_argument(
        "--texts", type=Path, nargs="+", required=True, metavar="FILE", help="texts to learn from, one a line"
    )
    made.add_argument("--held-out", type=Path, metavar="FILE", help="texts to judge by (default: 2 %% of the texts)")
    made.add_argument(
        "--similarity-weight", type=not_negative, default=1.0, help="of similarities in a batch (default: %(default)g)"
    )
    made.add_argument(
        "--hidden-weight", type=not_negative, default=0.2, help="of hidden states at the start (default: %(default)g)"
    )
    made.add_argument(
        "--relation-weight",
        type=not_negative,
        default=0.0,
        help="of relations between tokens in the last layer (MiniLMv2; default: 0)",
    )
    made.add_argument(
        "--substitute", type=share, default=0.0, help="share of tokens replaced in every other text (default: 0)"
    )
    made.add_argument(
        "--running-text",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="share of texts that get a full stop, half of them behind others (default: 0)",
    )


def weights(options: argparse.Namespace) -> "Weights":
    """What the flags say of the loss."""
    from train.distillation import Weights  # noqa: PLC0415 - as above

    return Weights(
        similarity_weight=options.similarity_weight,
        hidden_weight=options.hidden_weight,
        relation_weight=options.relation_weight,
        substitute=options.substitute,
        running_text=options.running_text,
    )
