import asyncio
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.http.storm import Probed, probe_for
from benchmarks.service.replicas import Nginx, NginxFailed, nginx


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


def test_probes_count_from_the_attempt_and_what_is_no_200_has_failed() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status = statuses.pop()
        writer.write(b"HTTP/1.1 %d Any\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    async def test() -> list[Probed]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            return await probe_for([server.sockets[0].getsockname()[1]], 0.0, 0.3)

    statuses = [200, 503, 200]
    (found,) = asyncio.run(test())
    assert (len(found.seconds), found.failed) == (3, 1)
    assert all(0 < seconds < 10 for seconds in found.seconds)
