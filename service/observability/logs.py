"""Log lines: one JSON object a line, one line a request, never a caller's text.

An exception's message may quote the text that it failed on, so a traceback is written as its places and its exception
types only. The one exception is a cause inside the backend, which is given token ids and never text.
"""

import asyncio
import json
import logging
import sys
import traceback
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import IO, Any

import orjson

from service.errors import InferenceFailed, ServiceError

REQUEST_LOGGER = "service.request"
FLUSH_INTERVAL = 0.1  # seconds
MOST_HELD = 256  # lines

# Written by uvicorn once a life, in its own words; the server says the same in ours.
_CHATTY_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")


class JsonHandler(logging.Handler):
    """Writes each record as one line, whole lines with one write, so that lines of several threads never mix.

    Attributes:
        holds_requests: whether the lines of answered requests wait for `flush`, or for any other line. Each write lets
            go of the interpreter, and under load another thread takes it.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self.holds_requests = False
        self._stream = stream
        self._held: list[bytes] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record. A reader that is gone fails no request; one that reads no more stops the process."""
        line: dict[str, Any] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = describe(record.exc_info[1])
        self._held.append(_to_json(line))
        if not self.holds_requests or record.name != REQUEST_LOGGER or len(self._held) >= MOST_HELD:
            self.flush()

    def flush(self) -> None:
        """Hands every line to the operating system."""
        with self.lock or nullcontext():
            lines, self._held = self._held, []
            if not lines:
                return
            try:
                self._stream.write(b"".join(lines))
                self._stream.flush()
            except (OSError, ValueError):
                pass


def _to_json(line: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a path or a variable that is no UTF-8, which the library writes as escapes
        return json.dumps(line, default=str).encode() + b"\n"


def configure(level: str, stream: IO[bytes] | None = None) -> JsonHandler:
    """Makes every logger of the process write JSON lines, to standard error unless told otherwise."""
    _leave_out_what_no_line_holds()
    handler = JsonHandler(sys.stderr.buffer if stream is None else stream)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    return handler


async def group_request_lines(interval: float = FLUSH_INTERVAL) -> None:
    """Has the lines of answered requests written in groups, one an interval, until cancelled. All others at once.

    A process that is killed loses the lines of its last interval.
    """
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, JsonHandler)]
    try:
        for handler in handlers:
            handler.holds_requests = True
        while True:
            await asyncio.sleep(interval)
            for handler in handlers:
                handler.flush()
    finally:
        for handler in handlers:
            handler.holds_requests = False
            handler.flush()


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
