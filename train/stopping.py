"""Ctrl-C, SIGTERM and SIGHUP end a run after the step that is under way, so that what is saved is whole."""

import signal
from types import FrameType
from typing import Self

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """While this holds, the first signal is only noted; a second one interrupts at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before = {number: signal.getsignal(number) for number in ENDINGS}

    def __enter__(self) -> Self:
        for number, handler in self._before.items():
            if handler is not signal.SIG_IGN:  # as `nohup` has it
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            signal.default_int_handler(number, frame)
        self.asked = True
