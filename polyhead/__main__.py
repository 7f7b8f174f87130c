"""Entry point of `polyhead` and of `python -m polyhead`."""

import signal
import sys


def main() -> int:
    """Runs a command; returns the exit code.

    Ctrl-C and SIGTERM end it in a line even while its modules are imported. The first process of a container would
    ignore SIGTERM, and go on to serve.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from polyhead.cli import main as run  # noqa: PLC0415 - interrupted like all else

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
