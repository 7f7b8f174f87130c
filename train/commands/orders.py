"""The flags of `polyhead train orders`."""

import argparse
import sys
from pathlib import Path

from train.commands.distillation import add_material, weights
from train.commands.options import add_speed_options, count, positive, run_settings, several, share, whole

EXAMPLE = """\
example:
  polyhead train orders --texts texts.txt --pairs rated.csv --output orders"""
SHARES = (0.2, 0.3, 0.46, 0.6)


def add_orders(made: argparse.ArgumentParser) -> None:
    """Adds the network, the shares and how long each way is trained."""
    made.epilog = EXAMPLE
    made.add_argument("model", nargs="?", metavar="MODEL", help="folder or hub id (default: the default model)")
    made.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write; what is done stays")
    made.add_argument(
        "--pairs", type=Path, required=True, metavar="CSV", help="text, text, rating: what loss_gradient is taken on"
    )
    made.add_argument(
        "--shares", type=share, nargs="+", default=SHARES, metavar="SHARE", help="of the heads that go (0.2 to 0.6)"
    )
    made.add_argument("--seeds", type=several, default=3, metavar="N", help="runs of each (default: %(default)s)")
    made.add_argument("--gate-steps", type=count, default=60, metavar="N", help="of learning gates (default: 60)")
    made.add_argument("--steps", type=count, default=30, metavar="N", help="of healing (default: %(default)s)")
    made.add_argument("--batch-size", type=count, default=32, metavar="N", help="texts a step (default: 32)")
    made.add_argument(
        "--fitting-texts", type=whole, default=300, metavar="N", help="of the closed-form fit (default: %(default)s)"
    )
    made.add_argument(
        "--gate-rate", type=positive, default=300.0, help="factor on the gates' learning rate (default: %(default)g)"
    )
    add_material(made)
    add_speed_options(made)
    made.set_defaults(learning_rate=6e-5)


def orders(options: argparse.Namespace) -> None:
    """Compare ways to choose the heads that go: each share, way and seed, healed alike.

    Ways are learned gates, what a closed-form fit can do without, the order of loss_gradient, and chance. The same
    command goes on where it was stopped.
    """
    # torch takes seconds to import: --help and a wrong command line answer without it.
    from train.experiments.orders import Orders, OrderSettings  # noqa: PLC0415
    from train.experiments.orders_report import write_orders  # noqa: PLC0415

    settings = OrderSettings(
        model=options.model,
        texts=tuple(options.texts),
        held_out=options.held_out,
        pairs=options.pairs,
        shares=tuple(dict.fromkeys(options.shares)),
        seeds=options.seeds,
        gate_steps=options.gate_steps,
        steps=options.steps,
        fitting_texts=options.fitting_texts,
        gate_rate=options.gate_rate,
        weights=weights(options),
    )
    made = Orders(settings, run_settings(options))
    sys.stderr.write(f"{made.left()} trials are left\n")
    write_orders(options.output, made, list(made.trials()))
    sys.stderr.write(f"wrote {options.output}: orders.md, orders.json and orders.svg\n")
