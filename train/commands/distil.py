"""The flags of `polyhead train distil`."""

import argparse
from pathlib import Path

from export.json_files import read_json
from train.commands.distillation import add_material, weights
from train.commands.options import count
from train.commands.running import run_recipe

EXAMPLE = """\
example:
  polyhead train distil --layers 3 --texts texts.txt --output small
  polyhead train distil --student student.json --texts texts.txt --output other     {"num_heads": [4, 4], "d_k": 16}"""


def add_distil(made: argparse.ArgumentParser) -> None:
    """Adds teacher, student and texts."""
    made.epilog = EXAMPLE
    made.add_argument(
        "model", nargs="?", metavar="MODEL", help="the teacher: artifact, folder or hub id (default: the default model)"
    )
    made.add_argument(
        "--student",
        type=Path,
        metavar="JSON",
        help="object with the fields of EncoderConfig that differ from the teacher's",
    )
    made.add_argument("--layers", type=count, metavar="L", help="layers of the student")
    made.add_argument("--heads", type=count, metavar="H", help="heads of each layer")
    made.add_argument("--d-k", type=count, metavar="K", help="size of a query or key head")
    made.add_argument("--d-v", type=count, metavar="V", help="size of a value head")
    made.add_argument("--intermediate-size", type=count, metavar="N", help="width of the feed-forward layers")
    made.add_argument("--from-nothing", action="store_true", help="begin with drawn weights, not with the teacher's")
    add_material(made)


def distil(options: argparse.Namespace) -> None:
    """Make a network of another shape that gives its teacher's vectors.

    The student begins with those of the teacher's weights that fit it, and learns from texts without labels.
    """
    # torch takes seconds to import: --help and a wrong command line answer without it.
    from train.distil import Distil, DistilSettings  # noqa: PLC0415

    changes = read_json(options.student) if options.student else {}
    for name in ("d_k", "d_v", "intermediate_size"):
        if getattr(options, name):
            changes[name] = getattr(options, name)
    settings = DistilSettings(
        model=options.model,
        texts=tuple(options.texts),
        held_out=options.held_out,
        student=changes,
        num_layers=options.layers,
        num_heads=options.heads,
        from_nothing=options.from_nothing,
        weights=weights(options),
    )
    run_recipe(options, lambda run: Distil(settings, run))
