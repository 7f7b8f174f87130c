"""nginx with the configuration as it stands, in front of replicas that end while they have a request."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.lib.client import Address
from benchmarks.lib.server import free_port
from benchmarks.service.nginx import NginxFailed, nginx

Asked = list[str]


class Ending(BaseHTTPRequestHandler):
    """Is ready; reads a request and closes the connection, as a process does that it ends."""

    asked: Asked

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - as the library calls it


class Answering(Ending):
    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.do_GET()


@contextmanager
def replica(kind: type[Ending]) -> Iterator[tuple[int, Asked]]:
    asked: Asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Kept", (kind,), {"asked": asked})) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()
            thread.join()


def connect(address: Address) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(address.host, address.port, timeout=10)


def post(replicas: list[int]) -> int:
    """Status of a request through nginx."""
    try:
        with nginx(replicas) as proxy, closing(connect(proxy.address)) as client:
            client.request("POST", "/encode", b"{}")
            with client.getresponse() as answer:
                return answer.status
    except NginxFailed as failure:
        if "not installed" not in str(failure):
            raise
        pytest.skip(str(failure))


def test_a_request_that_ends_one_replica_is_not_given_to_the_second() -> None:
    with replica(Ending) as (first, asked_first), replica(Ending) as (second, asked_second):
        assert post([first, second]) == 502
        assert len(asked_first + asked_second) == 1


def test_a_replica_that_is_gone_is_passed_over() -> None:
    with replica(Answering) as (port, asked):
        assert [post([free_port(), port]), post([port, free_port()])] == [200, 200]
        assert len(asked) == 2
