"""Entry point of `polyhead` and of `python -m polyhead`."""

import sys


def main() -> int:
    """Runs a command; returns the exit code. Ctrl-C ends it in a line even while its modules are imported."""
    try:
        from polyhead.cli import main as run  # noqa: PLC0415 - interrupted like all else

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
