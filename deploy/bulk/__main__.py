"""`python -m deploy.bulk --model DIR --input CORPUS --output FOLDER`: texts to vectors; the same command resumes."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from export.command import whole


def main(arguments: Sequence[str] | None = None, **how: Any) -> int:
    """Encodes; returns the exit code: 1 if it could not, or if a row failed. `how` is `load` of `run`."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bulk",
        description="Encode a corpus: Parquet, JSON lines, CSV, or text files with a text a line.",
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="artifact, at this path on every node")
    parser.add_argument(
        "--input", action="extend", nargs="+", required=True, metavar="PATH", help="files or folders, or URIs"
    )
    parser.add_argument("--output", required=True, metavar="FOLDER", help="for the result; a URI works, too")
    parser.add_argument(
        "--id-column",
        default="id",
        help="of the rows' ids; if there is no such column, an id is the hash of its row; %(default)s",
    )
    parser.add_argument("--text-column", default="text", help="the texts; %(default)s")
    parser.add_argument("--prompt-name", help="one of the model's prompts; its default unless named")
    parser.add_argument("--dimensions", type=int, help="truncate to N dimensions", metavar="N")
    parser.add_argument(
        "--no-normalize", dest="normalize", action="store_false", help="vectors as the model gives them"
    )
    parser.add_argument("--max-batch-tokens", type=whole, default=0, help="in one run; 0 is 512, on a GPU 16384")
    parser.add_argument("--workers", type=whole, default=0, help="actors at most; one a core, or a GPU, unless said")
    parser.add_argument("--gpu", action="store_true", help="an actor a GPU")
    parser.add_argument("--address", help="of a Ray cluster; without it, this machine alone")
    options = parser.parse_args(arguments)
    try:
        from deploy.bulk.run import run  # noqa: PLC0415 - --help needs no Ray
    except ImportError as error:
        sys.exit(f"python -m deploy.bulk: {error.name} is missing: install the bulk extra, pip install '.[cpu,bulk]'")
    return run(options, **how)


if __name__ == "__main__":
    sys.exit(main())
