"""The flags of `polyhead train distil`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from train.commands.distillation import add_material, weights
from train.commands.options import count, run_settings
from train.errors import RunError

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
    from train.loop import require_folder, train  # noqa: PLC0415

    run = run_settings(options)
    require_folder(run)
    changes = _read_student(options.student) if options.student else {}
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
    progress = train(Distil(settings, run), run)
    sys.stderr.write(
        f"wrote {run.output}: cosine {progress.best:.4f} on average at step {progress.best_step}\n"
        f"export it: polyhead export {run.output} --output artifacts/{run.output.name}\n"
    )


def _read_student(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise RunError(f"{path} holds {type(found).__name__}: expected an object of fields of EncoderConfig")
    return found
