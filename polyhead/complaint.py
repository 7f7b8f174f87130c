"""How commands fail: one line on standard error that begins with the command."""

import sys


def complain(program: str, message: object) -> int:
    """Says what went wrong; returns the exit code for it."""
    sys.stderr.write(f"{program}: {message}\n")
    return 1
