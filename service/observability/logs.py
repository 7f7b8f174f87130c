"""Log lines: one JSON object a line, one line a request, never a caller's text.

An exception's message may quote the text that it failed on, so a traceback is written as its places and its exception
types only. The one exception is a cause inside the backend, which is given token ids and never text.
"""

import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, Any

import orjson

from service.errors import InferenceFailed, ServiceError
from service.observability.line_writer import LineWriter, write_all

REQUEST_LOGGER = "service.request"
FLUSH_INTERVAL = 0.1  # seconds
LAST_LINES_SECONDS = 1.0  # at the end, for a reader to take them

# Written by uvicorn once a life, in its own words; the server says the same in ours.
_CHATTY_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")


class JsonHandler(logging.Handler):
    """Writes each record as one line with one write, so that lines of several threads never mix."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self._writer: LineWriter | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record. A reader that is gone fails no request."""
        line: dict[str, Any] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = describe(record.exc_info[1])
        if self._writer is None:
            write_all(self._stream, _to_json(line))
        else:
            self._writer.put(_to_json(line), at_once=record.name != REQUEST_LOGGER)

    @contextmanager
    def in_background(self, interval: float = FLUSH_INTERVAL) -> Iterator[None]:
        """Meanwhile a thread writes: lines of answered requests in groups, one an interval, all others at once.

        Each write lets go of the interpreter, and under load another thread takes it; and a reader that stops reading
        without going away blocks whoever writes. A process that is killed loses the lines of its last interval. Where
        the system gives no thread, lines are written as before.
        """
        try:
            writer = self._writer = LineWriter(self._stream, interval, _describe_loss)
        except RuntimeError:
            yield
            return
        try:
            yield
        finally:
            if writer.close(LAST_LINES_SECONDS):
                self._writer = None

    def flush(self) -> None:
        """Hands every line to the operating system, unless that takes too long."""
        if self._writer is not None:
            self._writer.flush(LAST_LINES_SECONDS)


def _describe_loss(lines: int) -> bytes:
    fields = {"time": timestamp(time.time()), "level": "warning", "logger": __name__}
    return _to_json({**fields, "message": f"{lines} lines were left out: nobody read the ones before them"})


def _to_json(line: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a path or a variable that is no UTF-8, which the library writes as escapes
        return json.dumps(line, default=str).encode() + b"\n"


def configure(level: str, stream: IO[bytes] | None = None) -> JsonHandler:
    """Makes every logger of the process write JSON lines, to standard error unless told otherwise."""
    _leave_out_what_no_line_holds()
    handler = JsonHandler(_standard_error() if stream is None else stream)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    return handler


def _standard_error() -> IO[bytes]:
    """Unbuffered: a buffer has a lock, with which a thread stuck in a write would hold up the interpreter's end."""
    return open(sys.stderr.fileno(), "wb", buffering=0, closefd=False)


def _leave_out_what_no_line_holds() -> None:
    """Makes records at half the price (Python's logging HOWTO, Optimization); every request has one."""
    logging._srcfile = None  # the documented way: nobody looks for callers
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def describe(error: BaseException) -> dict[str, Any]:
    """An exception for the log: its type, where it was raised, and its cause; its message only where that is safe."""
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    described: dict[str, Any] = {"type": type(error).__qualname__, "at": places}
    if isinstance(error, ServiceError):
        described["message"] = error.message
    cause = error.__cause__ or error.__context__
    if cause is not None:
        described["cause"] = describe(cause)
        if isinstance(error, InferenceFailed):
            described["cause"]["message"] = str(cause)
    return described
