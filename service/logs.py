"""Log lines: one JSON object a line, one line a request, never a caller's text.

An exception's message may quote the text that it failed on, so a traceback is written as its places and its exception
types only. The one exception is a cause inside the backend, which is given token ids and never text.
"""

import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import IO, Any

import orjson

from service.errors import InferenceFailed, ServiceError

REQUEST_LOGGER = "service.request"

# Written by uvicorn once a life, in its own words; the server says the same in ours.
_CHATTY_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")


class JsonHandler(logging.Handler):
    """Writes each record as one line with one write, so that lines of several threads never mix."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record; a reader that is gone or stuck must not fail a request."""
        line: dict[str, Any] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = describe(record.exc_info[1])
        self.write(line)

    def write(self, line: Mapping[str, Any]) -> None:
        """Writes one line and hands it to the operating system."""
        try:
            self._stream.write(orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE))
            self._stream.flush()
        except (OSError, ValueError):
            pass


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
