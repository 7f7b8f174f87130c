"""The flags of `polyhead train heal`."""

import argparse
from pathlib import Path

from train.commands.distillation import add_material, weights
from train.commands.options import positive, share, whole
from train.commands.running import run_recipe

EXAMPLE = """\
example:
  polyhead train heal --remove 0.45 --texts texts.txt --output healed
  polyhead export healed --output artifacts/healed"""


def add_heal(made: argparse.ArgumentParser) -> None:
    """Adds what is healed, and with what."""
    made.epilog = EXAMPLE
    made.set_defaults(**HEAL_DEFAULTS)
    made.add_argument(
        "model", nargs="?", metavar="MODEL", help="artifact, folder or Hugging Face id (default: the default model)"
    )
    which = made.add_mutually_exclusive_group()
    which.add_argument("--remove", type=share, metavar="SHARE", help="share of the heads to remove first")
    which.add_argument(
        "--heads",
        type=Path,
        metavar="JSON",
        help="heads to remove first: a record of `gates`, or {removed: [[layer, head]]}",
    )
    which.add_argument(
        "--prune-to-quality",
        dest="lose",
        type=positive,
        metavar="POINTS",
        help="remove as many heads as cost at most so many points before healing, as `polyhead export` does",
    )
    made.add_argument("--pairs", type=Path, metavar="CSV", help="rated pairs for --prune-to-quality")
    add_material(made)
    made.add_argument(
        "--fitting-texts", type=whole, default=4000, metavar="N", help="texts of the closed-form fit (default: 4000)"
    )


HEAL_DEFAULTS = {"learning_rate": 6e-5, "embedding_rate": 0.3}


def heal(options: argparse.Namespace) -> None:
    """Heal a network that loses heads.

    What is left learns to give the whole network's vectors again, from texts without labels.
    """
    # torch takes seconds to import: --help and a wrong command line answer without it.
    from train.heal import Heal, HealSettings  # noqa: PLC0415

    settings = HealSettings(
        model=options.model,
        texts=tuple(options.texts),
        held_out=options.held_out,
        remove=options.remove,
        heads=options.heads,
        lose=options.lose,
        pairs=options.pairs,
        fitting_texts=options.fitting_texts,
        weights=weights(options),
    )
    run_recipe(options, lambda run: Heal(settings, run))
