"""How every question behaves: its arguments, and its end when it cannot measure."""

import argparse
import inspect
import math
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TypeVar

from export.command import endings_interrupt
from export.errors import ExportError
from model.artifact import ArtifactError
from service.errors import one_line

Number = TypeVar("Number", int, float)

FAILED, INTERRUPTED = 2, 130  # exit codes: the first is argparse's for a wrong command line, the second a shell's


class CannotMeasure(Exception):
    """A script cannot measure what it was asked to; the message is one line and says what is in the way."""


def program(run: Callable[[], None]) -> Callable[[], None]:
    """`run` as a script: an obstacle becomes one line on standard error, and so does Ctrl-C.

    SIGTERM and SIGHUP do what Ctrl-C does: servers and workers that the script started end with it.
    """

    @wraps(run)
    def main() -> None:
        try:
            with endings_interrupt():
                run()
        except (CannotMeasure, ArtifactError, ExportError, OSError) as error:  # OSError: a file, a port, a full disk
            _end(one_line(error), FAILED)
        except KeyboardInterrupt:
            _end("interrupted", INTERRUPTED)

    return main


def parser_of(doc: str | None, *, takes: str) -> argparse.ArgumentParser:
    """A parser that explains its question: the docstring, how long it takes with its defaults, and every default."""
    return argparse.ArgumentParser(
        sys.argv[0], description=inspect.cleandoc(doc or ""), epilog=f"Takes {takes}.", formatter_class=_Formatter
    )


def whole(text: str) -> int:
    """A whole number above 0."""
    return _checked(int, text, lambda value: value > 0, "a whole number above 0")


def seed(text: str) -> int:
    """A whole number from 0."""
    return _checked(int, text, lambda value: value >= 0, "a whole number from 0")


def positive(text: str) -> float:
    """A finite number above 0."""
    return _checked(float, text, lambda value: 0 < value < math.inf, "a number above 0")


def not_negative(text: str) -> float:
    """A finite number from 0."""
    return _checked(float, text, lambda value: 0 <= value < math.inf, "a number from 0")


def setting(text: str) -> str:
    """`NAME=VALUE`, as an environment holds it."""
    name, separator, _ = text.partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError(f"expected POLYHEAD_X=Y, got {text!r}")
    return text


def last_line(written: str, otherwise: str) -> str:
    """What a process that failed said last."""
    return (written.strip().splitlines() or [otherwise])[-1]


def new_file(text: str) -> Path:
    """A file that can be written, found out before anything takes its time."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that is there, got {text!r}")
    return path


class _Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The docstring as it stands; a default behind every argument that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.default not in (None, [], argparse.SUPPRESS)
        return super()._get_help_string(action) if has_default else action.help


def _checked(read: Callable[[str], Number], text: str, is_valid: Callable[[Number], bool], expected: str) -> Number:
    try:
        if is_valid(value := read(text)):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")


def _end(message: str, code: int) -> None:
    sys.stderr.write(f"{sys.argv[0]}: {message}\n")
    raise SystemExit(code)
