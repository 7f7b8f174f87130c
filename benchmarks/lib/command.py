"""How every command behaves: its questions, its arguments, and its end when it cannot measure.

It measures nothing.
"""

import argparse
import ast
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TypeVar

from export.errors import ExportError
from export.interrupts import endings_interrupt
from model.manifest import ArtifactError
from service.errors import one_line

Number = TypeVar("Number", int, float)

FAILED, INTERRUPTED = 2, 130  # exit codes: the first is argparse's for a wrong command line, the second a shell's


class CannotMeasure(Exception):
    """A script cannot measure what it was asked to; the message is one line and says what is in the way."""


def program(run: Callable[[], None]) -> Callable[[], None]:
    """`run` as a script: what stands in its way becomes one line on standard error, and so does Ctrl-C.

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


def choose(doc: str | None, package: str, questions: Sequence[str]) -> None:
    """Runs the module of the question that the command line names first.

    Args:
        doc: what the command is about.
        package: of the command.
        questions: its modules, each with a docstring that begins with the question and a `main`.
    """
    parser = argparse.ArgumentParser(f"python -m {package}", description=doc)
    offered = parser.add_subparsers(dest="question", metavar="QUESTION", required=True)
    for name in questions:
        offered.add_parser(name, help=_first_line(f"{package}.{name}"), add_help=False)
    chosen = parser.parse_args(sys.argv[1:2]).question
    sys.argv = [f"python -m {package} {chosen}", *sys.argv[2:]]
    importlib.import_module(f"{package}.{chosen}").main()


def parser_of(doc: str | None, *, takes: str) -> argparse.ArgumentParser:
    """A parser that explains its script: what it asks (its module docstring), how long it takes, and every default.

    Args:
        doc: the module's `__doc__`.
        takes: how long the script takes as it is, and where.
    """
    return argparse.ArgumentParser(_name(), description=doc, epilog=f"Takes {takes}.", formatter_class=_Formatter)


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
    sys.stderr.write(f"{_name()}: {message}\n")
    raise SystemExit(code)


def _name() -> str:
    """What `choose` put there."""
    return sys.argv[0]


def _first_line(module: str) -> str:
    """Of a module's docstring, without importing the module: some take seconds."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None  # noqa: S101, PT018 - `choose` is given modules that are there
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""
    return docstring.partition("\n")[0].replace("%", "%%")
