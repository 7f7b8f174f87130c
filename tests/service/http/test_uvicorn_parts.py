"""What uvicorn does not promise to keep: each part is asked here, so that an update that changes one is seen."""

import asyncio
from typing import Any
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


def connected(kind: type[NotedTurns], app: Any) -> NotedTurns:
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    protocol, transport = kind(config, ServerState(), {}), Mock(spec=asyncio.Transport)
    transport.is_closing.return_value, transport.get_extra_info.return_value = False, None
    protocol.connection_made(transport)
    return protocol


async def test_requests_wait_and_are_dropped() -> None:
    protocol = connected(NotedTurns, wait)
    protocol.data_received(REQUEST * 3)
    await asyncio.sleep(0)
    assert (protocol.turns, protocol.is_answering, protocol.requests_waiting) == (1, True, 2)
    assert protocol.answering is not protocol.cycle
    assert protocol.flow.read_paused
    protocol.drop_waiting()
    assert protocol.requests_waiting == 0
    protocol.on_response_complete()
    assert protocol.turns == 1
    for task in protocol.tasks:
        task.cancel()


@pytest.mark.parametrize("connection", [b"keep-alive", b"close"])
async def test_a_writer_of_ours_is_all_that_an_answer_needs(connection: bytes) -> None:
    writer = Mock(spec=AnswerWriter)

    async def through_writer(scope: Scope, receive: Receive, send: Send) -> None:
        scope["protocol"].write_through(writer)
        await answer(scope, receive, send)

    class Handing(NotedTurns):
        def on_turn(self) -> None:
            self.scope["protocol"] = self  # type: ignore[typeddict-unknown-key]

    protocol = connected(Handing, through_writer)
    protocol.data_received(REQUEST.replace(b"Host:", b"Connection: %s\r\nHost:" % connection))
    await asyncio.sleep(0.01)
    assert isinstance(protocol.transport, Mock)
    protocol.transport.write.assert_not_called()
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


HEAD, ARRAY = b"HTTP/1.1 200 OK\r\n\r\n", memoryview(b"numbers")


@pytest.mark.parametrize(
    ("holds_head", "written", "at_last", "sent"),
    [
        (True, [HEAD], None, []),  # waits for its body
        (True, [HEAD, b"first", b"second"], "flush", [(HEAD, b"first"), b"second"]),
        (True, [HEAD], "flush", [HEAD]),  # without a body
        (True, [HEAD], "close", [HEAD, "closed"]),
        (True, [HEAD, b"header", ARRAY, ARRAY], None, [(HEAD, b"header"), ARRAY, ARRAY]),
        (False, [b"HTTP/1.1 100 Continue\r\n\r\n"], None, [b"HTTP/1.1 100 Continue\r\n\r\n"]),
    ],
)
def test_a_head_leaves_with_its_body_and_all_else_at_once(
    holds_head: bool, written: list[Any], at_last: str | None, sent: list[Any]
) -> None:
    calls: list[Any] = []
    transport = Mock(write=calls.append, writelines=calls.append)
    writer = AnswerWriter(transport, lambda: calls.append("closed"))
    if holds_head:
        writer.hold_head()
    for data in written:
        writer.write(data)
    if at_last is not None:
        getattr(writer, at_last)()
        writer.flush()
    assert calls == sent
    assert all(call is ARRAY for call in calls if isinstance(call, memoryview))
