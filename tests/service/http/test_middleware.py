"""Requests that end while their answer still waits for an earlier one on the connection to be read."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from service.errors import MalformedRequest
from service.http.connection import CONNECTION_KEY, Connection
from tests.service.conftest import Serve, Served

HOSTS = [("good.example", 415), ("evil.example", 400)]  # refused by the route, and before it


def lose(connection: Connection) -> None:
    connection.is_lost = True
    connection.cancel()


def break_off(connection: Connection) -> None:
    connection.fail(MalformedRequest("this is no valid HTTP/1.1 request"))


def answers_of_blocked(served: Served, host: str, end: Callable[[Connection], None]) -> list[Any]:
    """The statuses that are sent of a request that `end` happens to while its answer's head waits."""
    app: Any = served.client.app
    connection, sent = Connection(), []
    headers = [(b"host", host.encode()), (b"content-type", b"text/csv")]
    scope = {"type": "http", "method": "POST", "path": "/encode", "headers": headers, CONNECTION_KEY: connection}

    async def run() -> None:
        waits = asyncio.Event()

        async def send(message: Any) -> None:
            if not waits.is_set():
                waits.set()
                await asyncio.Event().wait()
            sent.append(message.get("status"))

        task = asyncio.create_task(app(scope, None, send))
        await waits.wait()
        end(connection)
        await task

    asyncio.run(run())
    return sent


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_who_leaves_before_the_answer_is_counted_and_raises_nothing(serve: Serve, host: str, status: int) -> None:
    served = serve("--allowed-hosts", "good.example")
    assert served.client.post("/encode", headers={"host": host}).status_code == status
    assert answers_of_blocked(served, host, lose) == []
    assert served.metric("polyhead_client_disconnects_total") == 1


@pytest.mark.parametrize("host", [host for host, _ in HOSTS])
def test_a_body_that_breaks_off_before_the_answer_is_told(serve: Serve, host: str) -> None:
    served = serve("--allowed-hosts", "good.example")
    assert answers_of_blocked(served, host, break_off) == [400, None]
    assert served.metric("polyhead_requests_rejected_total", reason="malformed_request") == 1
    assert served.metric("polyhead_requests_in_flight") == 0


def test_the_connection_is_told_before_an_answer_begins(served: Served) -> None:
    """It then writes head and body together."""
    app: Any = served.client.app
    events: list[str] = []
    connection = Connection(lambda: bool(events.append("told")))  # type: ignore[func-returns-value]
    scope = {"type": "http", "method": "GET", "path": "/healthz", "headers": [], CONNECTION_KEY: connection}

    async def send(message: Any) -> None:
        events.append(message["type"])

    asyncio.run(app(scope, None, send))
    assert events == ["told", "http.response.start", "http.response.body"]
