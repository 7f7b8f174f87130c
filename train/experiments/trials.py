"""Trials of an experiment: each is run once, and what it found stays in a file of its own."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from export.heads.install import write_whole
from export.json_files import read_json
from train.errors import RunError
from train.folder import CHECKPOINT

TRIALS, UNDER_WAY = "trials", "under-way"

Found = dict[str, Any]


def run_trial(
    folder: Path, name: str, described: Mapping[str, Any], run: Callable[[Path, bool], Mapping[str, Any]]
) -> Found:
    """What a trial found, now or earlier.

    Args:
        folder: of the experiment.
        name: of the trial; a file's name.
        described: everything that decides the result, as JSON types.
        run: trains in the given folder, from its checkpoint where the second argument is True, and returns figures.

    Raises:
        RunError: a trial of this name was run with other settings or data.
    """
    path = folder / TRIALS / f"{name}.json"
    wanted = json.loads(json.dumps(described))
    if path.is_file():
        kept: Found = read_json(path)
        if kept["described"] != wanted:
            raise RunError(f"{path} is of an experiment with other settings or data: name another --output")
        return kept
    place = folder / UNDER_WAY / name
    is_begun = (place / CHECKPOINT).is_file()
    if place.exists() and not is_begun:
        shutil.rmtree(place)
    found = {"name": name, "described": wanted, **run(place, is_begun)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(found, indent=1).encode() + b"\n")
    shutil.rmtree(place, ignore_errors=True)
    return found


def is_done(folder: Path, name: str) -> bool:
    """Whether a trial's figures are there."""
    return (folder / TRIALS / f"{name}.json").is_file()
