"""Flags that several training commands have, how flags become settings, and what every command does then."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from export.command import count, not_negative, number, positive, share, whole
from train.settings import OptimizerName, RunSettings

if TYPE_CHECKING:  # torch takes seconds to import: --help and a wrong command line answer without it
    from train.loop import Recipe

Settings = TypeVar("Settings")

several = number(int, lambda value: value > 1, "a whole number above 1, as intervals need two")


def add_model(made: argparse.ArgumentParser, text: str) -> None:
    """Adds the network to begin with."""
    made.add_argument("model", nargs="?", metavar="MODEL", help=text)


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
        "--optimizer",
        choices=get_args(OptimizerName),
        default=of.optimizer,
        help="muon is for the layers' matrices and learns more in a step, which takes longer (default: %(default)s)",
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


def settings_of(kind: type[Settings], options: argparse.Namespace, **given: Any) -> Settings:
    """A dataclass of settings, its fields from the flags of the same names where `given` has none."""
    names = [field.name for field in fields(kind) if hasattr(options, field.name) and field.name not in given]  # type: ignore[arg-type]
    named = {name: getattr(options, name) for name in names}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}, **given)


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
        "--related",
        action="store_true",
        help="group texts that are near to each other in a batch, so that similarities of near texts are learned",
    )
    made.add_argument(
        "--running-text",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="share of texts that get a full stop, half of them behind others (default: 0)",
    )


def run_recipe(options: argparse.Namespace, make: "Callable[[RunSettings], Recipe]") -> None:
    """Trains what `make` gives, and says how good the best network is and how it is exported.

    Raises:
        KeyboardInterrupt, Diverged, RunError: as `train.loop.train`; the folder is looked at before anything is read.
    """
    from train.folder import require_folder  # noqa: PLC0415 - as above
    from train.loop import train  # noqa: PLC0415
    from train.parallel import joined  # noqa: PLC0415

    run = settings_of(RunSettings, options)
    with joined(run.device) as processes:
        if processes.is_first:
            require_folder(run.output, is_resumed=run.resume)
        recipe = make(run)
        progress = train(recipe, run, processes)
    if not processes.is_first:
        return
    sys.stderr.write(
        f"wrote {run.output}: {recipe.score} {progress.best:.4f} at step {progress.best_step}\n"
        f"export it: polyhead export {run.output} --output artifacts/{run.output.name}\n"
    )
