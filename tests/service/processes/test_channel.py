"""Connections and messages from one process to another, here both ends in one."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from service.processes.channel import Link, give_connection, take_connection


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_connections_come_in_their_order_and_go_on_where_the_giver_stopped(
    channel: tuple[socket.socket, socket.socket],
) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    for index, (client, served) in enumerate(pairs):
        client.sendall(b"sent before")
        with served:
            assert give_connection(channel[0], served.fileno(), was_answered=index == 1)
    for index, (client, _) in enumerate(pairs):
        found = take_connection(channel[1])
        assert found is not None
        with client, found[0] as taken:
            assert found[1] == (index == 1)
            assert taken.recv(100) == b"sent before"
            taken.sendall(b"%d" % index)
            assert client.recv(100) == b"%d" % index
            taken.close()
            assert client.recv(100) == b""
    with pytest.raises(BlockingIOError):
        take_connection(channel[1])


def test_the_end_comes_behind_the_last_connection(channel: tuple[socket.socket, socket.socket]) -> None:
    client, served = socket.socketpair()
    with client, served:
        assert give_connection(channel[0], served.fileno())
        channel[0].close()
        found = take_connection(channel[1])
        assert found is not None
        found[0].close()
        assert take_connection(channel[1]) is None


def test_nothing_is_given_to_who_takes_none(channel: tuple[socket.socket, socket.socket]) -> None:
    client, served = socket.socketpair()
    with client, served:
        given = 0
        while give_connection(channel[0], served.fileno()):
            given += 1
            assert given < 100_000, "a channel that is never full"
        channel[1].close()
        assert not give_connection(channel[0], served.fileno())


async def test_metrics_are_asked_for_and_none_come_of_who_is_gone() -> None:
    ours, theirs = socket.socketpair()
    asking, asked = await Link.open(ours), await Link.open(theirs)
    heard, said = asked.messages(), asyncio.ensure_future(anext(asking.messages()))
    first = asyncio.gather(asking.ask_metrics(), asking.ask_metrics())
    assert await anext(heard) == {"kind": "scrape"}
    asked.send("snapshot", metrics=[{"name": "seen"}])
    assert list(await first) == [[{"name": "seen"}]] * 2
    assert (await said)["kind"] == "snapshot"
    second = asyncio.create_task(asking.ask_metrics())
    await anext(heard)
    await asked.finish()
    assert [message async for message in asking.messages()] == []
    assert await second is None
    await asking.finish()
