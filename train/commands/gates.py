"""The flags of `polyhead train gates`."""

import argparse

from train.commands.distillation import add_material, weights
from train.commands.options import positive, share
from train.commands.running import run_recipe

EXAMPLE = """\
example:
  polyhead train gates --remove 0.45 --texts texts.txt --output gated
  polyhead export gated --output artifacts/gated"""


def add_gates(made: argparse.ArgumentParser) -> None:
    """Adds the network, the target and the texts."""
    made.epilog = EXAMPLE
    made.add_argument("model", nargs="?", metavar="MODEL", help="folder or hub id (default: the default model)")
    made.add_argument("--remove", type=share, required=True, metavar="SHARE", help="share of the heads that goes")
    made.add_argument(
        "--gate-rate", type=positive, default=100.0, help="factor on the learning rate for gates (default: %(default)g)"
    )
    add_material(made)


def gates(options: argparse.Namespace) -> None:
    """Learn which heads to keep, and remove the others.

    Every head has a gate that learns to be open or closed while the network learns to do without.
    """
    # torch takes seconds to import: --help and a wrong command line answer without it.
    from train.gates import Gates, GateSettings  # noqa: PLC0415

    settings = GateSettings(
        model=options.model,
        texts=tuple(options.texts),
        held_out=options.held_out,
        remove=options.remove,
        gate_rate=options.gate_rate,
        weights=weights(options),
    )
    run_recipe(options, lambda run: Gates(settings, run))
