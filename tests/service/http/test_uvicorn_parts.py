"""What uvicorn does not promise to keep: each part is asked here, so that an update that changes one is seen."""

import asyncio
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from service.http.uvicorn_parts import AnswerWriter, HttpProtocol, HttpServer

REQUEST = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc"


class NotedTurns(HttpProtocol):
    turns = 0

    def on_turn(self) -> None:
        self.turns += 1


async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def wait(_scope: Scope, _receive: Receive, _send: Send) -> None:
    await asyncio.sleep(60)


def run(app: Any, check: Callable[[NotedTurns], None], *, sent: bytes = REQUEST) -> None:
    """Lets a connection send, and looks at it once its requests are begun."""

    async def test() -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
        protocol = NotedTurns(config, ServerState(), {})
        transport = Mock(spec=asyncio.Transport)
        transport.is_closing.return_value, transport.get_extra_info.return_value = False, None
        protocol.connection_made(transport)
        protocol.data_received(sent)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        check(protocol)
        for task in protocol.tasks:
            task.cancel()

    asyncio.run(test())


def test_requests_wait_and_are_dropped() -> None:
    def check(protocol: NotedTurns) -> None:
        assert (protocol.turns, protocol.is_answering, protocol.requests_waiting) == (1, True, 2)
        assert protocol.answering is not protocol.cycle
        assert protocol.flow.read_paused
        protocol.drop_waiting()
        assert protocol.requests_waiting == 0
        protocol.on_response_complete()
        assert protocol.turns == 1

    run(wait, check, sent=REQUEST * 3)


@pytest.mark.parametrize("connection", [b"keep-alive", b"close"])
async def test_a_writer_of_ours_is_all_that_an_answer_needs(connection: bytes) -> None:
    writer = Mock(spec=AnswerWriter)

    async def through_writer(scope: Scope, receive: Receive, send: Send) -> None:
        scope["protocol"].write_through(writer)
        await answer(scope, receive, send)

    class Handing(NotedTurns):
        def on_turn(self) -> None:
            self.scope["protocol"] = self  # type: ignore[typeddict-unknown-key]

    config = uvicorn.Config(through_writer, lifespan="off", log_config=None, access_log=False)
    protocol = Handing(config, ServerState(), {})
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value, transport.get_extra_info.return_value = False, None
    protocol.connection_made(transport)
    protocol.data_received(REQUEST.replace(b"Host:", b"Connection: %s\r\nHost:" % connection))
    await asyncio.sleep(0.01)
    transport.write.assert_not_called()
    assert writer.close.called == (connection == b"close")
    assert writer.write.call_args_list[0].args[0].startswith(b"HTTP/1.1 204 ")


def test_the_server_installs_no_signal_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    install = Mock()
    monkeypatch.setattr("uvicorn.server.signal.signal", install)
    server = HttpServer(uvicorn.Config(answer, log_config=None))
    with server.capture_signals():
        install.assert_not_called()
    with uvicorn.Server(uvicorn.Config(answer, log_config=None)).capture_signals():
        assert install.called


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
