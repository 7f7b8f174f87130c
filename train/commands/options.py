"""Flags that every training command has, and how they become settings."""

import argparse
import math
from pathlib import Path
from typing import Any

from train.settings import RunSettings


def add_run_options(made: argparse.ArgumentParser) -> None:
    """Adds the flags of the loop; a command sets its own defaults with `set_defaults` afterwards."""
    of = RunSettings(output=Path())
    group = made.add_argument_group("the run")
    group.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write")
    group.add_argument("--artifact", type=Path, metavar="DIR", help="in the end, export the best network into DIR")
    group.add_argument("--resume", action="store_true", help="go on from the checkpoint in DIR, with the same flags")
    group.add_argument(
        "--seed", type=whole, default=of.seed, help="decides the order of the data (default: %(default)s)"
    )
    group.add_argument("--epochs", type=positive, default=of.epochs, help="passes over the data (default: %(default)g)")
    group.add_argument("--batch-size", type=count, default=of.batch_size, help="examples a step (default: %(default)s)")
    group.add_argument(
        "--embedding-rate",
        type=not_negative,
        default=of.embedding_rate,
        help="factor on the rate for token and position embeddings, 0 leaves them alone (default: %(default)g)",
    )
    group.add_argument("--dropout", type=share, default=of.dropout, help="share of hidden values left out (default: 0)")
    group.add_argument(
        "--head-dropout", type=share, default=of.head_dropout, help="share of heads left out, at both ends (default: 0)"
    )
    group.add_argument(
        "--evaluations", type=count, default=of.evaluations, help="times the network is judged (default: %(default)s)"
    )
    add_speed_options(group)


def add_speed_options(made: argparse._ActionsContainer) -> None:
    """Adds how fast is learned, and on what."""
    of = RunSettings(output=Path())
    made.add_argument(
        "--learning-rate", type=positive, default=of.learning_rate, help="the highest rate (default: %(default)g)"
    )
    made.add_argument(
        "--warm-up",
        type=share,
        default=of.warm_up,
        help="share of the steps in which the rate rises (default: %(default)g)",
    )
    made.add_argument(
        "--weight-decay", type=not_negative, default=of.weight_decay, help="of matrices (default: %(default)g)"
    )
    made.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        default=of.precision,
        help="of products; weights stay fp32 (default: fp32)",
    )
    made.add_argument("--device", default=of.device, help="of torch: cpu, cuda (default: %(default)s)")
    made.add_argument("--debug", action="store_true", help="show the traceback of a failure")


def run_settings(options: argparse.Namespace) -> RunSettings:
    """The settings that the flags give."""
    given: dict[str, Any] = {name: getattr(options, name) for name in RunSettings.__slots__ if hasattr(options, name)}
    return RunSettings(**given)


def whole(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)


def count(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def several(text: str) -> int:
    """A whole number above 1: one run has no interval."""
    if count(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 1: intervals need two")
    return int(text)


def positive(text: str) -> float:
    """A number above 0."""
    value = not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def not_negative(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 0")
    return value


def share(text: str) -> float:
    """A number of at least 0 and below 1."""
    value = not_negative(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share of at least 0 and below 1")
    return value
