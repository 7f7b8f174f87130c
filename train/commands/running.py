"""What every training command does once its flags are read: train, and say what came of it."""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from train.commands.options import run_settings
from train.settings import RunSettings

if TYPE_CHECKING:  # torch takes seconds to import: --help and a wrong command line answer without it
    from train.recipe import Recipe


def run_recipe(options: argparse.Namespace, make: "Callable[[RunSettings], Recipe]") -> None:
    """Trains what `make` gives, and says how good the best network is and how it is exported.

    Raises:
        KeyboardInterrupt, Diverged, RunError: as `train.loop.train`; the folder is looked at before anything is read.
    """
    from train.loop import require_folder, train  # noqa: PLC0415 - as above
    from train.parallel import joined  # noqa: PLC0415

    run = run_settings(options)
    with joined(run.device) as processes:
        if processes.is_first:
            require_folder(run)
        recipe = make(run)
        progress = train(recipe, run, processes)
    if not processes.is_first:
        return
    sys.stderr.write(
        f"wrote {run.output}: {recipe.score} {progress.best:.4f} at step {progress.best_step}\n"
        f"export it: polyhead export {run.output} --output artifacts/{run.output.name}\n"
    )
