"""Log lines: one JSON object a line, one line a request, never a caller's text.

An exception's message may quote the text that it failed on, so of a traceback only places and exception types are
written. The message of a cause inside the backend is written too: the backend gets token ids and never a text. If the
system refused a call, its reason is written.
"""

import contextlib
import logging
import os
import select
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from io import FileIO
from queue import SimpleQueue
from threading import Event, Thread
from typing import IO, Any

import orjson

from service.errors import InferenceFailed, ServiceError

REQUEST_LOGGER = "service.request"
FLUSH_INTERVAL = 0.1  # seconds
MAX_WAITING = 15_000  # lines, some 4 MB; those beyond are left out and counted
LAST_LINES_SECONDS = 1.0  # that the end waits for a reader

_request_logger = logging.getLogger(REQUEST_LOGGER)
_to_json = partial(orjson.dumps, default=str, option=orjson.OPT_APPEND_NEWLINE)
_NOT_SHOWN = frozenset({"time", "level", "logger", "message", "settings"})  # of a line for a person, or not again


class JsonHandler(logging.Handler):
    """Writes each record as one line, a line or more with one write, so that lines of several threads never mix.

    Args:
        stream: unbuffered; a reader that is gone fails no request. A terminal gets lines for a person.
        fields: of every line.
    """

    def __init__(self, stream: IO[bytes], fields: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._stream = stream
        self._fields = dict(fields or {})
        self._to_line = _to_words if stream.isatty() else _to_json
        self._most = select.PIPE_BUF if fields else sys.maxsize  # bytes a write; see `_portions`
        self._waiting: SimpleQueue[bytes | Event] | None = None
        self._is_urgent = Event()
        self._lost = 0  # counted under the handler's lock
        self._told = 0  # of these, in lines

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record, or has it written."""
        message, fields = str(record.msg), getattr(record, "fields", {})
        with contextlib.suppress(Exception):  # a library's message that its arguments do not fit fails no request
            message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            fields = {**fields, "error": describe(record.exc_info[1])}
        line = self._line(record.created, record.levelname.lower(), record.name, message, fields)
        self._put(line, is_urgent=record.name != REQUEST_LOGGER)

    def write_request(self, fields: Mapping[str, Any]) -> None:
        """Writes the line of an answered request without a record, which costs half as much again."""
        line = self._line(time.time(), "info", REQUEST_LOGGER, "request", fields)
        with self.lock or contextlib.nullcontext():
            self._put(line, is_urgent=False)

    def _line(self, seconds: float, level: str, logger: str, message: str, fields: Mapping[str, Any]) -> bytes:
        head = {"time": timestamp(seconds), "level": level, "logger": logger, "message": message}
        return self._to_line({**head, **self._fields, **fields})

    def _put(self, line: bytes, *, is_urgent: bool) -> None:
        if self._waiting is None:
            _write_all(self._stream, line)
        elif self._waiting.qsize() >= MAX_WAITING:
            self._lost += 1
        else:
            self._waiting.put(line)
            if is_urgent:
                self._is_urgent.set()

    @contextlib.contextmanager
    def in_background(self, interval: float = FLUSH_INTERVAL) -> Iterator[None]:
        """Meanwhile a thread writes: lines of answered requests in groups, one an interval, all others at once.

        A reader that stops reading without going away blocks whoever writes, so no request may do that. In groups,
        since each write lets go of the interpreter, and under load another thread takes it. A process that is killed
        loses the request lines of its last interval.
        """
        waiting: SimpleQueue[bytes | Event] = SimpleQueue()
        end = Event()
        Thread(target=self._write_groups, args=(waiting, end, interval), name="log", daemon=True).start()
        self._waiting = waiting
        try:
            yield
        finally:
            if self._hand_over(end):
                self._waiting = None

    def flush(self) -> None:
        """Hands every line to the operating system, unless that takes too long."""
        self._hand_over(Event())

    def _hand_over(self, mark: Event) -> bool:
        """Waits until the writer has come to a mark behind all lines, a second at most; whether it has."""
        if self._waiting is None:
            return True
        self._waiting.put(mark)
        self._is_urgent.set()
        return mark.wait(LAST_LINES_SECONDS)

    def _write_groups(self, waiting: "SimpleQueue[bytes | Event]", end: Event, interval: float) -> None:
        while not end.is_set():
            group = [waiting.get()]
            self._is_urgent.wait(interval)
            self._is_urgent.clear()
            while not waiting.empty():  # this thread alone empties it
                group.append(waiting.get())
            lines = [entry for entry in group if isinstance(entry, bytes)]
            if lost := self._lost - self._told:
                self._told += lost
                message = f"{lost} lines were left out: no one read the ones before them"
                lines.append(self._line(time.time(), "warning", __name__, message, {}))
            for whole_lines in _portions(lines, self._most):
                _write_all(self._stream, whole_lines)
            for entry in group:
                if isinstance(entry, Event):
                    entry.set()


def _write_all(stream: IO[bytes], data: bytes) -> None:
    """Writes to an unbuffered stream, waiting where it does not block; a reader that is gone is no failure."""
    with contextlib.suppress(OSError, ValueError):
        rest = memoryview(data)
        while rest:
            written = stream.write(rest)
            if written is None:  # not blocking, and full
                select.select([], [stream], [])
            else:
                rest = rest[written:]


def _portions(lines: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Lines in few writes of at most `most` bytes: what a pipe keeps whole (pipe(7), PIPE_BUF) never mixes."""
    portion: list[bytes] = []
    size = 0
    for line in lines:
        if portion and size + len(line) > most:
            yield b"".join(portion)
            portion, size = [], 0
        portion.append(line)
        size += len(line)
    yield b"".join(portion)


def _to_words(line: dict[str, Any]) -> bytes:
    """Time of day in UTC, level and message, then whatever else the line has; settings are for machines."""
    shown = {name: value for name, value in line.items() if name not in _NOT_SHOWN}
    rest = "".join(f" {name}={value}" for name, value in shown.items())
    words = f"{line['time'][11:19]} {line['level']:<7} {line['message']}{rest}"
    return words.replace("\n", "\n    ").encode(errors="backslashreplace") + b"\n"


def log_request(fields: Mapping[str, Any]) -> None:
    """Writes the line of an answered request; as a record only where somebody else listens, too."""
    if not _request_logger.isEnabledFor(logging.INFO):
        return
    handlers = [*_request_logger.handlers, *logging.root.handlers]
    if len(handlers) == 1 and isinstance(handlers[0], JsonHandler) and not _request_logger.filters:
        handlers[0].write_request(fields)
    else:
        _request_logger.info("request", extra={"fields": fields})


def configure(level: str, stream: IO[bytes] | None = None, *, fields: Mapping[str, Any] | None = None) -> JsonHandler:
    """Makes every logger of the process write JSON lines, to standard error unless told otherwise.

    `fields` of every line say which of several processes writes it.
    """
    # Unbuffered: a thread stuck in a write would hold a buffer's lock, and the interpreter's end waits for that.
    handler = JsonHandler(FileIO(sys.stderr.fileno(), "w", closefd=False) if stream is None else stream, fields)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, root.level))  # our server says itself what it does
    return handler


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 in UTC, to the millisecond."""
    whole, milliseconds = divmod(round(seconds * 1_000_000) // 1000, 1000)
    return f"{_to_the_second(whole)}.{milliseconds:03}Z"


@lru_cache(maxsize=1)
def _to_the_second(seconds: int) -> str:
    """Kept for the next line: making it takes longer than the rest of a line."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def describe(error: BaseException) -> dict[str, Any]:
    """An exception for the log: its type, the place that raised it, and its cause; its message only if that is safe."""
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    described: dict[str, Any] = {"type": type(error).__qualname__, "at": places}
    if isinstance(error, ServiceError):
        described["message"] = error.message
    elif isinstance(error, OSError) and error.errno:
        described["message"] = os.strerror(error.errno)  # not the error's own words
    cause = error.__cause__ or error.__context__
    if cause is not None:
        described["cause"] = describe(cause)
        if isinstance(error, InferenceFailed):
            described["cause"]["message"] = str(cause)
    return described
