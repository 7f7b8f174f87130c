"""How a command of the exporter ends: its exit code, and one line on standard error where it did not succeed."""

import sys
import traceback
from collections.abc import Callable

from export.errors import one_line
from export.interrupts import endings_interrupt

FAILED, INTERRUPTED = 1, 130  # the second as a shell counts a program that Ctrl-C ended


def run_command(command: Callable[[], None], *, name: str, left_behind: str, debug: bool) -> int:
    """Runs a command and returns its exit code.

    Args:
        command: what to run.
        name: for messages.
        left_behind: what an interrupted command leaves behind, for messages.
        debug: whether a failure shows its traceback.
    """
    try:
        with endings_interrupt():
            command()
    except Exception as error:  # a full disk, besides, or whatever libraries raise where memory is short
        if debug:
            traceback.print_exc()
        sys.stderr.write(f"{name} failed: {one_line(error)}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write(f"{name} interrupted: {left_behind}\n")
        return INTERRUPTED
    return 0
