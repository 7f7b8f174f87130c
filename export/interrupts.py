"""An end from outside, as a scheduler's or a closed terminal's, made the interruption that Ctrl-C is."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDINGS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def endings_interrupt() -> Iterator[None]:
    """Whoever ends the process otherwise than with Ctrl-C leaves no more behind. What is ignored stays so (`nohup`)."""
    ended = [number for number in ENDINGS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ended:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ended:
            signal.signal(number, signal.SIG_DFL)
