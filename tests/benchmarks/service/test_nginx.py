import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.service.nginx import Nginx, NginxFailed, configuration, nginx


def test_ports_are_those_that_were_given() -> None:
    text = configuration(9000, [9001, 9002], retry=True)
    assert "listen 127.0.0.1:9000;" in text
    assert [line.split()[1] for line in text.splitlines() if line.strip().startswith("server 127")] == [
        "127.0.0.1:9001",
        "127.0.0.1:9002",
    ]
    assert "800" not in text


@pytest.mark.parametrize("retry", [True, False])
def test_what_was_sent_is_sent_again_where_that_is_wanted(retry: bool) -> None:
    (line,) = (
        line for line in configuration(1, [2, 3], retry=retry).splitlines() if "proxy_next_upstream error" in line
    )
    assert ("non_idempotent" in line) is retry


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
