"""The flags of `polyhead train sweep`."""

import argparse
import sys
from pathlib import Path

from train.commands.options import add_speed_options, count, run_settings, several

EXAMPLE = """\
example:
  polyhead train sweep --texts texts.txt --output sweep
  polyhead train sweep --texts texts.txt --output full --full --estimate"""
HEADS = (1, 2, 4, 8, 16, 32)
SMALL = {"num_layers": 2, "steps": 100, "batch_size": 32, "seeds": 3}
FULL = {"num_layers": 6, "steps": 20000, "batch_size": 64, "seeds": 5}
MEASURED_STEPS = 6


def add_sweep(made: argparse.ArgumentParser) -> None:
    """Adds the teacher, the rows and how long they are trained."""
    made.epilog = EXAMPLE
    made.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="whose vectors are learned: artifact, folder or hub id (the default model)",
    )
    made.add_argument("--texts", type=Path, nargs="+", required=True, metavar="FILE", help="texts, one a line")
    made.add_argument("--held-out", type=Path, metavar="FILE", help="texts to judge by (default: 2 %% of the texts)")
    made.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder to write; runs that are done stay"
    )
    made.add_argument("--heads", type=count, nargs="+", default=HEADS, metavar="H", help="numbers of heads (1 to 32)")
    made.add_argument(
        "--full", action="store_true", help=f"{_said(FULL)}, embeddings from nothing too (default: {_said(SMALL)})"
    )
    made.add_argument("--estimate", action="store_true", help="say how long it takes, and train nothing")
    for name in SMALL:
        kind = several if name == "seeds" else count
        made.add_argument(f"--{name.replace('num_', '').replace('_', '-')}", dest=name, type=kind, metavar="N")
    add_speed_options(made)
    made.set_defaults(learning_rate=1e-3)


def sweep(options: argparse.Namespace) -> None:
    """Compare numbers of heads: one encoder trained from nothing with each, over seeds.

    With d_k = D / h all have the same parameters; with d_k fixed, more heads are more of them. Further rows have head
    dropout, a value residual and an output gate. The same command goes on where it was stopped.
    """
    # torch takes seconds to import: --help and a wrong command line answer without it.
    from train.experiments.sweep import Sweep, SweepSettings  # noqa: PLC0415
    from train.experiments.sweep_report import hours, write_sweep  # noqa: PLC0415

    for name, value in (FULL if options.full else SMALL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    settings = SweepSettings(
        model=options.model,
        texts=tuple(options.texts),
        held_out=options.held_out,
        heads=tuple(dict.fromkeys(options.heads)),
        num_layers=options.num_layers,
        steps=options.steps,
        seeds=options.seeds,
        own_embeddings=options.full,
    )
    made = Sweep(settings, run_settings(options))
    left = made.left()
    speed = made.seconds_per_step(MEASURED_STEPS)
    sys.stderr.write(
        f"{left} runs of {settings.steps} steps are left: about {hours(speed, settings.steps, left):.1f} hours at "
        f"{speed:.2f} seconds a step\n"
    )
    if not options.estimate:
        record = write_sweep(options.output, made, list(made.trials()))
        sys.stderr.write(f"wrote {options.output}: {len(record['rows'])} rows in sweep.md, sweep.json and sweep.svg\n")


def _said(preset: dict[str, int]) -> str:
    return "{num_layers} layers, {steps} steps of {batch_size} texts, {seeds} seeds".format(**preset)
