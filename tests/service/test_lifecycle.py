"""A server's background work: it loads the model, looks at connections, measures the loop."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest

import service.server
from service.server import Server, watch_loop_lag
from service.services import Readiness
from service.settings import read_settings


@asynccontextmanager
async def started(check_interval: float = 0.001) -> AsyncIterator[Server]:
    """A server that listens, and loads for as long as the test lasts."""
    settings = read_settings(["--model", "nowhere", "--send-timeout", str(4 * check_interval)])
    is_over = threading.Event()

    def load(*_: object) -> Any:
        return is_over.wait()

    server = Server(settings, Readiness(), load, "nowhere")
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await server.startup([listener])
        try:
            yield server
        finally:
            is_over.set()
        for waiting in server.servers:
            waiting.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_timeouts_go_on_where_those_of_one_connection_fail() -> None:
    async with started() as server:
        broken, sound = Mock(), Mock()
        broken.enforce_timeouts.side_effect = AttributeError("a fault of ours")
        server.server_state.connections |= {broken, sound}
        await until(lambda: sound.enforce_timeouts.call_count >= 3)
        assert broken.transport.abort.called


async def test_a_process_whose_timeouts_or_measurements_end_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_observe: object) -> None:
        raise OSError("no clock")

    monkeypatch.setattr(service.server, "watch_loop_lag", fail)

    async with started(check_interval=1.0) as server:
        await until(lambda: server.should_exit)
    assert str(server.failure) == "cannot go on: no clock"


def test_lag_is_what_held_the_loop_up() -> None:
    lags: list[float] = []

    async def hold_up() -> None:
        watcher = asyncio.create_task(watch_loop_lag(lags.append, interval=0.01))
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # what the watcher is there to see
        await asyncio.sleep(0.05)
        watcher.cancel()

    asyncio.run(hold_up())
    assert len(lags) > 3
    assert min(lags) >= 0
    assert 0.25 < max(lags) < 5
