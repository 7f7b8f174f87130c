import io
import os
import time
from collections.abc import Iterator
from typing import IO

import pytest

from service.observability import line_writer
from service.observability.line_writer import LineWriter, write_all

LINE = b"x" * 999 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, IO[bytes]]]:
    """Where to read, and where to write without a buffer."""
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as stream:
        yield reading, stream
    os.close(reading)


def describe_loss(lines: int) -> bytes:
    return b"lost %d\n" % lines


def read(reading: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += os.read(reading, size - len(found))
    return found


def test_writes_in_order_what_comes_from_any_thread() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream, 3600, describe_loss)
    for number in range(100):
        writer.put(b"%d\n" % number, at_once=number % 3 == 0)
    assert writer.close(10)
    assert stream.getvalue().split() == [b"%d" % number for number in range(100)]
    writer._thread.join(10)
    assert not writer._thread.is_alive()


def test_nobody_waits_for_a_reader_that_stops_reading_and_what_is_lost_is_counted(
    pipe: tuple[int, IO[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_writer, "MOST_WAITING", 100 * len(LINE))
    reading, stream = pipe
    writer = LineWriter(stream, 3600, describe_loss)
    writer.put(LINE * 90, at_once=True)  # more than the pipe takes
    while writer._waiting:
        time.sleep(0.001)
    for _ in range(150):
        writer.put(LINE, at_once=True)
    assert not writer.flush(0.1)
    assert not writer.close(0.1), "stuck, and given up"
    assert read(reading, 190 * len(LINE) + 8) == LINE * 190 + b"lost 50\n"
    assert writer.flush(10)


def test_a_stream_that_does_not_block_loses_nothing(pipe: tuple[int, IO[bytes]]) -> None:
    reading, stream = pipe
    os.set_blocking(stream.fileno(), False)
    writer = LineWriter(stream, 3600, describe_loss)
    writer.put(LINE * 200, at_once=True)
    time.sleep(0.05)
    assert read(reading, 200 * len(LINE)) == LINE * 200
    assert writer.close(10)


def test_a_reader_that_is_gone_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb", buffering=0) as stream:
        write_all(stream, LINE)
    write_all(stream, LINE)  # closed
