"""The artifact that a command works on: an argument, else `POLYHEAD_MODEL`, else where `polyhead export` writes."""

import argparse
import os
from pathlib import Path

DEFAULT_ARTIFACT = Path("artifacts/all-MiniLM-L6-v2")
VARIABLE = "POLYHEAD_MODEL"  # what the service reads the same setting from
DEFAULTS = f"default: {VARIABLE}, else {DEFAULT_ARTIFACT}"


def default_artifact() -> Path:
    """The artifact where the command line names none."""
    return Path(os.environ.get(VARIABLE) or DEFAULT_ARTIFACT)


def add_artifact(made: argparse.ArgumentParser, purpose: str) -> None:
    """Adds ARTIFACT, and `--model`, which says the same; `chosen_artifact` reads them."""
    described = f"artifact {purpose}, made by `polyhead export` ({DEFAULTS})"
    either = made.add_mutually_exclusive_group()
    either.add_argument("artifact", nargs="?", type=Path, metavar="ARTIFACT", help=described)
    either.add_argument("--model", type=Path, metavar="DIR", help="the same, as a flag")


def add_model(made: argparse.ArgumentParser) -> None:
    """Adds `--model` alone, for commands whose arguments are texts; `chosen_artifact` reads it."""
    made.add_argument("--model", type=Path, metavar="DIR", help=f"artifact, made by `polyhead export` ({DEFAULTS})")


def chosen_artifact(options: argparse.Namespace) -> Path:
    """The artifact that the command line names, or the default one."""
    named: Path | None = getattr(options, "artifact", None) or options.model
    return named or default_artifact()
