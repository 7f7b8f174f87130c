import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from benchmarks.lib.client import DROPPED, Address, Connection, ProtocolError, post

InLoop = Callable[[Coroutine[Any, Any, Any]], Any]
Serve = Callable[..., AbstractAsyncContextManager[Address]]


def test_a_post_is_one_complete_http_request() -> None:
    request = post("/encode", {"inputs": "naïve 你好"}, texts=1, tokens=6)
    head, _, content = request.data.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /encode HTTP/1.1\r\n")
    assert f"Content-Length: {len(content)}".encode() in head
    assert json.loads(content) == {"inputs": "naïve 你好"}
    assert (request.texts, request.tokens) == (1, 6)


@pytest.mark.parametrize("url", ["https://host:1", "host:1", "http://"])
def test_an_address_is_plain_http(url: str) -> None:
    with pytest.raises(ValueError, match="expected http://host:port"):
        Address.parse(url)


def test_keeps_one_connection_and_reads_answers_in_any_pieces(serve: Serve, in_loop: InLoop) -> None:
    peers = set()

    async def in_pieces(body: bytes, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername"))
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        for start in range(0, len(answer), 7):
            writer.write(answer[start : start + 7])
            await writer.drain()
            await asyncio.sleep(0.001)

    async def run() -> None:
        async with serve(in_pieces) as address:
            connection = Connection(address, keep_body=True)
            for text in ("first", "a second one, longer", ""):
                request = post("/", {"text": text}, texts=1, tokens=1)
                response = await connection.context(request.data)
                assert response.status == 200
                assert json.loads(response.body) == {"text": text}
            connection.close()
            assert len(peers) == 1
            assert (await connection.context(request.data)).status == DROPPED

    in_loop(run())


def test_reads_status_and_retry_after_whatever_their_case(serve: Serve, in_loop: InLoop) -> None:
    async def refuse(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-AFTER: 3\r\nContent-LENGTH: 2\r\n\r\n{}")

    async def run() -> None:
        async with serve(refuse) as address:
            connection = Connection(address)
            response = await connection.context(post("/", {}, texts=1, tokens=1).data)
            assert (response.status, response.retry_after, response.body) == (429, "3", b"")
            connection.close()

    in_loop(run())


def test_connects_again_after_connection_close_and_after_a_dropped_request(serve: Serve, in_loop: InLoop) -> None:
    answers = iter(
        [
            b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            None,
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ]
    )

    async def handle(_: bytes, writer: asyncio.StreamWriter) -> None:
        answer = next(answers)
        if answer is None:
            writer.close()
        else:
            writer.write(answer)

    async def run() -> None:
        async with serve(handle) as address:
            connection = Connection(address)
            statuses = [(await connection.context(b"GET / HTTP/1.1\r\n\r\n")).status for _ in range(3)]
            assert statuses == [413, DROPPED, 200]
            connection.close()

    in_loop(run())


def test_a_server_that_is_not_there_drops_the_request(unused_port: int, in_loop: InLoop) -> None:
    async def run() -> int:
        return (await Connection(Address("127.0.0.1", unused_port)).context(b"GET / HTTP/1.1\r\n\r\n")).status

    assert in_loop(run()) == DROPPED


def test_refuses_an_answer_without_a_length(serve: Serve, in_loop: InLoop) -> None:
    async def chunked(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")

    async def run() -> None:
        async with serve(chunked) as address:
            connection = Connection(address)
            with pytest.raises(ProtocolError, match=r"expected HTTP/1\.1 with a Content-Length"):
                await connection.context(b"GET / HTTP/1.1\r\n\r\n")
            connection.close()

    in_loop(run())
