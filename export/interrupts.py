"""Ends a command on SIGTERM and SIGHUP as Ctrl-C ends it, so that it cleans up behind itself."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDINGS = (signal.SIGTERM, signal.SIGHUP)


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
