"""What goes out in one write, and that nothing stays behind."""

from typing import Any, cast

import pytest

from service.http.answer_writer import AnswerWriter

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Transport:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.calls.append(tuple(parts))

    def close(self) -> None:
        self.calls.append("closed")


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def writer(transport: Transport) -> AnswerWriter:
    return AnswerWriter(cast("Any", transport), transport.close)


def test_a_head_leaves_with_its_body_and_what_follows_by_itself(writer: AnswerWriter, transport: Transport) -> None:
    writer.hold_head()
    writer.write(HEAD)
    assert transport.calls == []
    writer.write(b"first")
    writer.write(b"second")
    writer.flush()
    assert transport.calls == [(HEAD, b"first"), b"second"]


def test_a_head_without_a_body_leaves_at_the_end(writer: AnswerWriter, transport: Transport) -> None:
    writer.hold_head()
    writer.write(HEAD)
    writer.flush()
    writer.flush()
    assert transport.calls == [HEAD]


def test_closing_leaves_nothing_behind(writer: AnswerWriter, transport: Transport) -> None:
    writer.hold_head()
    writer.write(HEAD)
    writer.close()
    assert transport.calls == [HEAD, "closed"]


def test_a_client_that_waits_for_continue_gets_it_at_once(writer: AnswerWriter, transport: Transport) -> None:
    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert len(transport.calls) == 1


def test_an_array_is_written_as_it_is(writer: AnswerWriter, transport: Transport) -> None:
    array = memoryview(b"numbers")
    writer.hold_head()
    for data in (HEAD, b"header", array, array):
        writer.write(data)
    assert transport.calls == [(HEAD, b"header"), array, array]
