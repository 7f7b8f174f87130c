import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.load import Address, post
from benchmarks.lib.server import free_port, pss_bytes, started
from benchmarks.service.replicas import Nginx, NginxFailed, nginx
from benchmarks.service.startup import send_each


class NamingReplica(BaseHTTPRequestHandler):
    """Answers with the host that it is asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        host = self.headers.get("Host", "nobody").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(host)))
        self.end_headers()
        self.wfile.write(host)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the library calls it
        """Nothing."""


@pytest.fixture(scope="module")
def proxy() -> Iterator[Nginx]:
    with ThreadingHTTPServer(("127.0.0.1", 0), NamingReplica) as replica:
        threading.Thread(target=replica.serve_forever, args=(0.01,)).start()
        try:
            with nginx([replica.server_port] * 2) as running:
                yield running
        except NginxFailed as failure:
            if "not installed" not in str(failure):
                raise
            pytest.skip(str(failure))
        finally:
            replica.shutdown()


@pytest.mark.parametrize(("header", "host"), [(b"", b"polyhead"), (b"Host: a.example\r\n", b"a.example")])
def test_replicas_are_always_told_a_host(proxy: Nginx, header: bytes, host: bytes) -> None:
    """They answer 400 to HTTP/1.1 without one, which nginx speaks to them whatever its client does."""
    address = proxy.address.host, proxy.address.port
    with socket.create_connection(address, timeout=10) as client, client.makefile("rb") as answer:
        client.sendall(b"GET / HTTP/1.0\r\n" + header + b"\r\n")
        assert answer.read().endswith(b"\r\n\r\n" + host)


def test_each_request_is_sent_once_and_an_unexpected_answer_ends_it(
    serve: Callable[..., AbstractAsyncContextManager[Address]], in_loop: Callable[[Coroutine[Any, Any, Any]], Any]
) -> None:
    seen: list[bytes] = []

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(body)
        status = b"429 Too Many Requests" if b"long" in body else b"200 OK"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)

    async def run() -> None:
        async with serve(answer) as address:
            bodies = [{"inputs": str(number)} for number in range(9)]
            await send_each(address, [post("/encode", body) for body in bodies])
            assert sorted(seen) == [post("/encode", body).data.partition(b"\r\n\r\n")[2] for body in bodies]
            with pytest.raises(CannotMeasure, match="answered 429, expected 200"):
                await send_each(address, [post("/encode", {"inputs": "long"})])

    in_loop(run())


def test_pss_grows_by_what_a_process_holds_and_files_are_a_part_of_it() -> None:
    before, files = pss_bytes(os.getpid()), pss_bytes(os.getpid(), "Pss_File")
    held = np.ones(8_000_000)  # 64 MB
    assert 60e6 < pss_bytes(os.getpid()) - before < 80e6
    assert 0 < files < before
    del held


def test_a_servers_memory_is_that_of_all_its_processes() -> None:
    port = free_port()
    code = (
        "import http.server, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], "
        f"stdin=subprocess.PIPE); http.server.HTTPServer(('127.0.0.1', {port}), "
        "http.server.SimpleHTTPRequestHandler).serve_forever()"
    )
    with started([sys.executable, "-c", code], port, "/", {}) as server:
        first, second = server.processes()
        alone = pss_bytes(first)
        assert alone < server.pss_bytes() <= alone + pss_bytes(second) + 1e6
