import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import uvloop

from benchmarks.lib.load import Address
from service.server import watch_loop_lag

Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
MakeRun = Callable[[], Coroutine[Any, Any, Any]]
MOST_LAG = 0.04  # seconds; undisturbed measurements are asserted to 0.06 and more
ATTEMPTS = 5  # then a run counts as it is


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Address]:
    """A server that hands each request's body to `handler`, which writes whatever it likes."""
    open_writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                await handler(await reader.readexactly(length), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is done
        finally:
            open_writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()
        for writer in set(open_writers):
            writer.close()
        await asyncio.sleep(0.01)


@pytest.fixture
def serve() -> Callable[[Handler], AbstractAsyncContextManager[Address]]:
    return serving


@pytest.fixture
def undisturbed(in_loop: Callable[[Coroutine[Any, Any, Any]], Any]) -> Callable[[MakeRun], Any]:
    """Repeats a run of a second if the machine held it up meanwhile: such times say nothing about the code."""

    async def watched(make_run: MakeRun, lags: list[float]) -> Any:
        watcher = asyncio.create_task(watch_loop_lag(lags.append, interval=0.01))
        try:
            return await make_run()
        finally:
            watcher.cancel()

    def run(make_run: MakeRun) -> Any:
        for _ in range(ATTEMPTS):
            lags: list[float] = []
            result = in_loop(watched(make_run, lags))
            if max(lags) < MOST_LAG:
                break
        return result

    return run


@pytest.fixture(params=["asyncio", "uvloop"])
def in_loop(request: pytest.FixtureRequest) -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Runs a coroutine to its end, on either event loop that the load generator may meet."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner.run
