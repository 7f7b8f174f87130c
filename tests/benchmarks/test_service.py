import os
import socket
from http.server import BaseHTTPRequestHandler

import numpy as np

from benchmarks.lib.server import pss_bytes
from benchmarks.service.replicas import nginx
from tests.deploy import tools
from tests.deploy.tools import or_skip


class NamingReplica(BaseHTTPRequestHandler):
    """Answers with the host that it is asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        host = self.headers.get("Host", "nobody").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(host)))
        self.end_headers()
        self.wfile.write(host)

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - as the library calls it


def test_replicas_are_always_told_a_host() -> None:
    """They answer 400 to HTTP/1.1 without one, which nginx speaks to them whatever its client does."""
    with tools.serving(NamingReplica) as port, or_skip(nginx([port] * 2)) as proxy:
        for header, host in ((b"", b"polyhead"), (b"Host: a.example\r\n", b"a.example")):
            address = proxy.address.host, proxy.address.port
            with socket.create_connection(address, timeout=10) as client, client.makefile("rb") as answer:
                client.sendall(b"GET / HTTP/1.0\r\n" + header + b"\r\n")
                assert answer.read().endswith(b"\r\n\r\n" + host)


def test_pss_grows_by_what_a_process_holds_and_files_are_a_part_of_it() -> None:
    before, files = pss_bytes(os.getpid()), pss_bytes(os.getpid(), "Pss_File")
    held = np.ones(8_000_000)  # 64 MB
    assert 60e6 < pss_bytes(os.getpid()) - before < 80e6
    assert 0 < files < before
    del held
