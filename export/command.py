"""How a command runs and ends: numbers among its arguments, signals, threads, exit code, one line on standard error.

It does not import torch, which reads how its threads are to wait when it is imported.
"""

import argparse
import math
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from export.errors import one_line

Number = TypeVar("Number", int, float)

FAILED, WRONG_COMMAND_LINE, INTERRUPTED = 1, 2, 130  # the last as a shell counts a program that Ctrl-C ended
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
OTHERS_FLAGS = ("--weights", "--no-deps")  # which messages name, and no export has; the second is pip's
ENDINGS = (signal.SIGTERM, signal.SIGHUP)


def number(read: Callable[[str], Number], holds: Callable[[Number], bool], expected: str) -> Callable[[str], Number]:
    """What argparse reads numbers of one kind with; `expected` names the kind."""

    def checked(text: str) -> Number:
        try:
            value = read(text)
        except ValueError:
            value = None
        if value is None or not holds(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return checked


whole = number(int, lambda value: value >= 0, "a whole number from 0")
count = number(int, lambda value: value > 0, "a whole number above 0")
positive = number(float, lambda value: 0 < value < math.inf, "a number above 0")
not_negative = number(float, lambda value: 0 <= value < math.inf, "a number from 0")
share = number(float, lambda value: 0 <= value < 1, "a share of at least 0 and below 1")


class CommandParser(argparse.ArgumentParser):
    """Answers a wrong command line as the other commands of `polyhead` do, without the list of all flags."""

    def error(self, message: str) -> NoReturn:
        """Ends with what is wrong, and 2."""
        self.exit(WRONG_COMMAND_LINE, f"Try '{self.prog} --help' for help.\n\nError: {message}\n")


class Store(argparse.Action):
    """What a flag does that says nothing else.

    A flag of several values may be repeated, where argparse keeps the last alone; a value that comes twice counts once.
    """

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:  # noqa: ARG002
        """Replaces the default, or adds to the values that were given before."""
        if option_string and self.nargs == "+":
            before = getattr(namespace, self.dest)
            values = list(dict.fromkeys(values if before is self.default else [*before, *values]))
        setattr(namespace, self.dest, values)


def with_flags_placed(message: str, own: Container[str]) -> str:
    """An export's message in a command that lacks flags which it may name: behind it stands whose flags they are."""
    lacking = dict.fromkeys(flag for flag in FLAG.findall(message) if flag not in own and flag not in OTHERS_FLAGS)
    if not lacking:
        return message
    return f"{message} ({', '.join(lacking)}: flags of `polyhead export`, whose artifact may be named here)"


def wait_asleep() -> None:
    """Has torch's OpenMP threads sleep between products instead of spinning; to be called before torch is imported.

    Verification runs torch and ONNX Runtime in one process, each with a thread a core. On a busy machine a thread that
    spins keeps the core from the thread that it waits for. On two cores shared with eight to twelve other processes
    the default model's export took 385 and 220 s with spinning, 91 and 40 s without. A value set by the user is kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@contextmanager
def endings_interrupt() -> Iterator[None]:
    """While this holds, both signals raise KeyboardInterrupt. One that is ignored stays ignored (`nohup`)."""
    handled = [number for number in ENDINGS if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def is_interruption(error: BaseException) -> bool:
    """Whether Ctrl-C ended it; while a module in C is loaded, an ImportError is made of that."""
    cause = (error.__cause__ or error.__context__) if isinstance(error, ImportError) else error
    return isinstance(cause, KeyboardInterrupt)


def run_command(
    command: Callable[[], None], *, name: str, left_behind: Callable[[], str], flags: Container[str], debug: bool
) -> int:
    """Runs a command and returns its exit code.

    Messages have its name, say what is `left_behind` by an interruption, and whose other flags than its own are. With
    `debug` a failure shows its traceback.
    """
    try:
        with endings_interrupt():
            import numpy  # noqa: F401, PLC0415 - torch imports it in C, drops Ctrl-C there, and goes on with half of it

            command()
    except (Exception, KeyboardInterrupt) as error:  # a full disk, besides, or what libraries raise for want of memory
        if is_interruption(error):
            sys.stderr.write(f"{name} interrupted: {left_behind()}\n")
            return INTERRUPTED
        if debug:
            traceback.print_exc()
        sys.stderr.write(f"{name} failed: {with_flags_placed(one_line(error), flags)}\n")
        return FAILED
    return 0
