import errno
import fcntl
import io
import json
import logging
import os
import sys
import termios
import time
from collections.abc import Iterator
from typing import IO

import pytest

from service.errors import InferenceFailed, TooLarge
from service.observability import logs
from tests.service.process import wait_until

TEXT = "a text that nobody may read"


@pytest.fixture
def lines() -> io.BytesIO:
    return io.BytesIO()


@pytest.fixture(autouse=True)
def handler(lines: io.BytesIO) -> Iterator[logs.JsonHandler]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield logs.configure("info", lines)
    root.handlers[:] = handlers
    root.setLevel(level)


def read(stream: io.BytesIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_line_is_one_json_object(lines: io.BytesIO) -> None:
    logging.getLogger("some.module").warning("two\nlines %d", 2, extra={"fields": {"status": 200}})
    (line,) = read(lines)
    assert line.pop("time")
    assert line == {"level": "warning", "logger": "some.module", "message": "two\nlines 2", "status": 200}


def test_a_terminal_gets_lines_for_a_person() -> None:
    ours, theirs = os.openpty()
    with open(theirs, "wb", buffering=0) as terminal:
        logs.configure("info", terminal)
        logging.getLogger("service").info("starting", extra={"fields": {"settings": {"port": 8000}}})
        logging.getLogger("some.module").warning("slow", extra={"fields": {"route": "/encode", "status": 200}})
        logs.log_request({"route": "/encode", "status": 200})
        written = b""
        while written.count(b"\n") < 3:  # a terminal gives what has come so far
            written += os.read(ours, 4096)
        starting, slow, request = written.decode().splitlines()
    os.close(ours)
    assert starting.split()[1:] == ["info", "starting"]
    assert slow.split()[1:] == ["warning", "slow", "route=/encode", "status=200"]
    assert request.split()[1:] == ["info", "request", "route=/encode", "status=200"]


def test_a_message_that_its_arguments_do_not_fit_is_no_failure(lines: io.BytesIO, handler: logs.JsonHandler) -> None:
    handler.handle(logging.LogRecord("some.module", logging.WARNING, "", 0, "%d texts", (TEXT,), None))
    (line,) = read(lines)
    assert line["message"] == "%d texts"


def test_level_holds(lines: io.BytesIO, handler: logs.JsonHandler) -> None:
    logging.getLogger("some.module").debug("unseen")
    logging.getLogger("uvicorn.error").info("unseen too")
    logging.root.handlers[:] = [handler]
    logging.root.setLevel("WARNING")
    logs.log_request({"status": 200})
    assert not lines.getvalue()


def test_time_is_utc_to_the_millisecond() -> None:
    assert logs.timestamp(1_700_000_000.0625) == "2023-11-14T22:13:20.062Z"
    assert logs.timestamp(1_700_000_000.001) == "2023-11-14T22:13:20.001Z"
    assert logs.timestamp(1_700_000_001) == "2023-11-14T22:13:21.000Z"


def test_traceback_has_places_but_no_message(lines: io.BytesIO) -> None:
    try:
        try:
            int(TEXT)
        except ValueError as error:
            raise RuntimeError(TEXT) from error
    except RuntimeError:
        logging.getLogger("some.module").exception("it failed", extra={"fields": {"status": 500}})
    (line,) = read(lines)
    assert TEXT not in lines.getvalue().decode()
    described, status = line["error"], line["status"]
    assert status == 500
    assert isinstance(described, dict)
    assert described["type"] == "RuntimeError"
    assert described["cause"]["type"] == "ValueError"
    assert "test_traceback_has_places_but_no_message" in described["at"][0]


def test_our_own_errors_the_systems_and_causes_inside_the_backend_keep_their_message() -> None:
    assert logs.describe(TooLarge("over the limit"))["message"] == "over the limit"
    assert logs.describe(OSError(errno.EMFILE, TEXT))["message"] == "Too many open files"
    error = InferenceFailed("inference failed")
    error.__cause__ = RuntimeError("bad kernel")
    assert logs.describe(error)["cause"]["message"] == "bad kernel"


def test_lines_of_requests_are_written_in_groups_others_at_once(lines: io.BytesIO, handler: logs.JsonHandler) -> None:
    requests, others = logging.getLogger(logs.REQUEST_LOGGER), logging.getLogger("other")

    def written() -> list[object]:
        return [line["message"] for line in read(lines)]

    with handler.in_background(interval=3600):
        requests.info("first")
        assert written() == []
        others.info("second")
        wait_until(lambda: written() == ["first", "second"])
        requests.info("last")
    assert written()[-1] == "last"
    requests.info("afterwards")
    assert written()[-1] == "afterwards", "held no longer"
    with handler.in_background(interval=0.01):
        requests.info("within the interval")
        wait_until(lambda: written()[-1] == "within the interval")


def test_a_request_has_the_same_line_whoever_else_listens(
    lines: io.BytesIO, handler: logs.JsonHandler, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"request_id": "a", "status": 200}
    logging.root.handlers[:] = [handler]
    logs.log_request(fields)
    assert not caplog.records, "no record was made"
    logging.root.handlers.append(caplog.handler)
    logs.log_request(fields)
    assert [vars(record)["fields"] for record in caplog.records] == [fields]
    alone, beside = read(lines)
    assert alone.keys() == beside.keys()
    assert alone | {"time": 0} == beside | {"time": 0}
    described = {"level": "info", "logger": "service.request", "message": "request"}
    assert alone == {"time": alone["time"], **described, **fields}


@pytest.fixture
def pipe() -> Iterator[tuple[int, IO[bytes]]]:
    """Where to read, and where to write without a buffer."""
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as stream:
        yield reading, stream
    os.close(reading)


def bytes_in(reading: int) -> int:
    return int.from_bytes(fcntl.ioctl(reading, termios.FIONREAD, bytes(4)), sys.byteorder)


def read_lines(reading: int, count: int) -> list[dict[str, object]]:
    found = b""
    while found.count(b"\n") < count:
        found += os.read(reading, 2**16)
    return [json.loads(line) for line in found.splitlines()]


def test_nobody_waits_for_a_reader_that_stops_reading_and_what_is_lost_is_counted(
    pipe: tuple[int, IO[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING", 100)
    monkeypatch.setattr(logs, "LAST_LINES_SECONDS", 0.05)
    reading, stream = pipe
    handler = logs.configure("info", stream)
    logger = logging.getLogger("some.module")
    with handler.in_background():
        logger.info("x" * 2**17)  # more than the pipe takes: the thread is stuck in it
        wait_until(lambda: bytes_in(reading) == 2**16)
        for number in range(150):
            logger.info("line %d", number)
        handler.flush()  # gives up
    *written, last = [line["message"] for line in read_lines(reading, 102)[1:]]
    assert written == [f"line {number}" for number in range(100)]
    assert last == "50 lines were left out: no one read the ones before them"
    handler.flush()


def test_what_is_lost_is_told_once(
    lines: io.BytesIO, handler: logs.JsonHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with handler.in_background(interval=3600):
        for most in (0, 1, 1):
            monkeypatch.setattr(logs, "MAX_WAITING", most)
            logging.getLogger("some.module").info("a line")
            handler.flush()
    left_out = "1 lines were left out: no one read the ones before them"
    assert [line["message"] for line in read(lines)] == [left_out, "a line", "a line"]


def test_a_stream_that_does_not_block_loses_nothing(pipe: tuple[int, IO[bytes]]) -> None:
    reading, stream = pipe
    os.set_blocking(stream.fileno(), False)
    handler = logs.configure("info", stream)
    with handler.in_background():
        for _ in range(200):
            logging.getLogger("some.module").info("x" * 1000)
        assert len(read_lines(reading, 200)) == 200


def test_a_stream_or_a_reader_that_is_gone_is_no_failure(lines: io.BytesIO) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb", buffering=0) as unread:
        handlers = [logs.JsonHandler(stream) for stream in (unread, lines)]
        lines.close()
        for handler in handlers:
            handler.emit(logging.makeLogRecord({"msg": "into the void"}))


def test_the_end_of_logging_loses_no_line(pipe: tuple[int, IO[bytes]]) -> None:
    """The logging library holds the handler's lock while it waits for the last lines."""
    reading, stream = pipe
    handler = logs.configure("info", stream)
    with handler.in_background(interval=3600):
        logging.getLogger(logs.REQUEST_LOGGER).info("the last request")
        begun = time.monotonic()
        logging.shutdown([lambda: handler])
        assert time.monotonic() - begun < logs.LAST_LINES_SECONDS / 2
        assert read_lines(reading, 1)[0]["message"] == "the last request"
