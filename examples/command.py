"""The command line of the examples that load a model."""

import argparse
import os


def parser_of(name: str, described: str | None, model: str = "artifacts/all-MiniLM-L6-v2") -> argparse.ArgumentParser:
    """A command line with `--model`, which is this artifact or the one that POLYHEAD_MODEL names."""
    made = argparse.ArgumentParser(
        f"python -m examples.{name}", description=described, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("POLYHEAD_MODEL", model)
    made.add_argument("--model", default=default, help="artifact (POLYHEAD_MODEL; default: %(default)s)")
    return made
