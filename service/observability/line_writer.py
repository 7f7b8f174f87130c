"""Lines written in groups, on a thread of their own: where nobody reads them any more, no request waits for that.

It knows bytes, and nothing of what the lines say.
"""

import contextlib
import select
import threading
from collections.abc import Callable
from typing import IO

MOST_WAITING = 2**22  # bytes; some 15,000 requests


class LineWriter:
    """Takes lines from any thread and writes them in their order, whole groups with one write.

    Args:
        stream: unbuffered, to write to; one that is gone is no failure.
        interval: seconds after which what waits is written.
        describe_loss: the line that says how many lines were left out, because what waited took more than MOST_WAITING.
    """

    def __init__(self, stream: IO[bytes], interval: float, describe_loss: Callable[[int], bytes]) -> None:
        self._stream = stream
        self._interval = interval
        self._describe_loss = describe_loss
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._bytes = self._lost = 0
        self._is_urgent = self._is_writing = self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def put(self, line: bytes, *, at_once: bool) -> None:
        """Has a line written, at once or with the next group. Never blocks."""
        with self._changed:
            if self._bytes + len(line) > MOST_WAITING:
                self._lost += 1
                return
            self._waiting.append(line)
            self._bytes += len(line)
            if at_once:
                self._is_urgent = True
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Waits until nothing waits to be written, `timeout` seconds at most; whether that was reached."""
        with self._changed:
            self._is_urgent = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not (self._waiting or self._lost or self._is_writing), timeout)

    def close(self, timeout: float) -> bool:
        """As `flush`; then ends the thread, unless it is still stuck in a write."""
        with self._changed:
            self._is_closing = True
        return self.flush(timeout)

    def _work(self) -> None:
        while lines := self._take():
            write_all(self._stream, b"".join(lines))
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()

    def _take(self) -> list[bytes]:
        """The next group; empty at the end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._is_urgent or self._is_closing, self._interval)
                self._is_urgent = False
                lines, self._waiting, self._bytes = self._waiting, [], 0
                if self._lost:
                    lines.append(self._describe_loss(self._lost))
                    self._lost = 0
                if lines or self._is_closing:
                    self._is_writing = bool(lines)
                    return lines


def write_all(stream: IO[bytes], data: bytes) -> None:
    """Writes to an unbuffered stream, waiting where it does not block; a reader that is gone is no failure."""
    with contextlib.suppress(OSError, ValueError):
        rest = memoryview(data)
        while rest:
            written = stream.write(rest)
            if written is None:  # not blocking, and full
                select.select([], [stream], [])
            else:
                rest = rest[written:]
