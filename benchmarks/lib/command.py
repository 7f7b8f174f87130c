"""How every question behaves: its arguments, and its end when it cannot measure."""

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from export import command
from export.errors import ExportError
from model.artifact import ArtifactError
from service.errors import ServiceError, one_line
from service.inference.backend import ProviderUnavailable

whole, positive, not_negative, share = command.count, command.positive, command.not_negative, command.share


class CannotMeasure(Exception):
    """A script cannot measure what it was asked to; the message is one line and says what is in the way."""


# OSError: a file, a port, a full disk; ServiceError: the model does not do what it is asked for.
OBSTACLES = (CannotMeasure, ArtifactError, ExportError, ProviderUnavailable, ServiceError, OSError)


def program(run: Callable[[], None]) -> Callable[[], None]:
    """`run` as a script: an obstacle becomes one line on standard error, and so does Ctrl-C.

    SIGTERM and SIGHUP do what Ctrl-C does: servers and workers that the script started end with it.
    """

    @wraps(run)
    def main() -> None:
        try:
            with command.endings_interrupt():
                run()
        except OBSTACLES as error:
            message, code = one_line(error), 2  # argparse's for a wrong command line
        except KeyboardInterrupt:
            message, code = "interrupted", command.INTERRUPTED
        else:
            return
        sys.stderr.write(f"{sys.argv[0]}: {message}\n")
        raise SystemExit(code)

    return main


def new_file(text: str) -> Path:
    """A file that can be written, found out before anything takes its time."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that is there, got {text!r}")
    return path


PAIRS = "sentence, sentence, rating; without a header, as the STS benchmark's"
# Arguments of several questions.
SHARED: Mapping[str, Mapping[str, Any]] = {
    "model": {"type": Path, "required": True, "metavar": "DIR", "help": "artifact to serve"},
    "connections": {"type": whole, "help": "requests under way at any time"},
    "texts-per-request": {"type": whole, "nargs": "+", "metavar": "N", "help": "texts of a request"},
    "seconds": {"type": positive, "help": "length of each measurement"},
    "texts": {"type": whole, "help": "different texts"},
    "rounds": {"type": whole, "help": "measured rounds; one more warms up"},
    "lengths": {"type": whole, "nargs": "+", "metavar": "N", "help": "tokens of a text"},
    "plot": {"type": new_file, "metavar": "SVG", "help": "draw the figures there"},
    "pairs": {"type": Path, "required": True, "metavar": "CSV", "help": PAIRS},
}
# Texts and rounds of a comparison, and the load of one that goes over HTTP.
TEXTS: Mapping[str, Any] = {"texts": 640, "rounds": 5}
LOAD: Mapping[str, Any] = {"connections": 16, "texts_per_request": [1, 32], "seconds": 8.0, **TEXTS}


def parser_of(doc: str | None, *shared: str, takes: str, **defaults: Any) -> argparse.ArgumentParser:
    """A parser that explains its question: the docstring, how long it takes with its defaults, and every default.

    It has the `shared` arguments of `SHARED`, and others of these with the given defaults.
    """
    made = argparse.ArgumentParser(
        sys.argv[0], description=inspect.cleandoc(doc or ""), epilog=f"Takes {takes}.", formatter_class=_Formatter
    )
    made.register("action", None, command.Store)
    for name in shared:
        made.add_argument(f"--{name}", **SHARED[name])
    for name, default in defaults.items():
        flag = name.replace("_", "-")
        made.add_argument(f"--{flag}", default=default, **SHARED[flag])
    return made


def last_line(written: str) -> str:
    """What a process that failed said last."""
    return (written.strip().splitlines() or ["it wrote nothing"])[-1][-2000:]


class _Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The docstring as it stands; a default behind every argument that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default not in (None, []) else action.help
