"""nginx with the configuration as it stands, in front of replicas that end while they have a request."""

import http.client
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from benchmarks.lib.load import Address
from benchmarks.lib.server import free_port
from benchmarks.service.replicas import Nginx, NginxFailed, nginx
from model.artifact import read_manifest, write_manifest
from tests.deploy.tools import DEPLOY
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import ServerProcess

Asked = list[str]
MODELS = DEPLOY / "nginx/models.conf"
SERVED = {"minilm": "sentence-transformers/all-MiniLM-L6-v2", "bge": "BAAI/bge-small-en-v1.5"}


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


class Loading(Ending):
    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()


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


@contextmanager
def behind_nginx(replicas: list[int], **more: Any) -> Iterator[Nginx]:
    """Skips the test where nginx is not installed."""
    try:
        with nginx(replicas, **more) as proxy:
            yield proxy
    except NginxFailed as failure:
        if "not installed" not in str(failure):
            raise
        pytest.skip(str(failure))


def post(replicas: list[int]) -> int:
    """Status of a request through nginx."""
    with behind_nginx(replicas) as proxy, closing(connect(proxy.address)) as client:
        client.request("POST", "/encode", b"{}")
        with client.getresponse() as answer:
            return answer.status


def test_a_request_that_ends_one_replica_is_not_given_to_the_second() -> None:
    with replica(Ending) as (first, asked_first), replica(Ending) as (second, asked_second):
        assert post([first, second]) == 502
        assert len(asked_first + asked_second) == 1


def test_a_replica_that_is_gone_is_passed_over() -> None:
    with replica(Answering) as (port, asked):
        assert [post([free_port(), port]), post([port, free_port()])] == [200, 200]
        assert len(asked) == 2


def test_a_replica_that_is_not_ready_is_passed_over() -> None:
    with replica(Loading) as (loading, asked_loading), replica(Answering) as (port, asked):
        assert [post([loading, port]), post([port, loading])] == [200, 200]
        assert asked_loading
        assert len(asked) == 2


def test_nobody_is_ready() -> None:
    with replica(Loading) as (first, _), replica(Loading) as (second, _):
        assert post([first, second]) == 503


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """Two services with an artifact each, behind one nginx."""
    folder = tmp_path_factory.mktemp("models")
    for name, model in SERVED.items():
        directory = write_fake_artifact(folder / name)
        manifest = read_manifest(directory)
        write_manifest(directory, replace(manifest, model=model))
    with ExitStack() as running:
        flags = [("--model", str(folder / name)) for name in SERVED]
        servers = [running.enter_context(ServerProcess("tests.service.fake_server", *one)) for one in flags]
        ports = [server.wait_until_ready().address[1] for server in servers]
        proxy = running.enter_context(behind_nginx(ports, path=MODELS, ready="/bge/readyz"))
        yield proxy.address


def ask(address: Address, method: str, path: str, body: bytes | Iterable[bytes] | None = None) -> tuple[int, Any]:
    with closing(connect(address)) as client:
        client.request(method, path, body, {"content-type": "application/json"})
        with client.getresponse() as answer:
            return answer.status, json.loads(answer.read())


@pytest.mark.parametrize("name", SERVED)
def test_the_path_names_the_model(models: Address, name: str) -> None:
    assert ask(models, "GET", f"/{name}/info")[1]["model"] == SERVED[name]
    other = next(model for model in SERVED.values() if model != SERVED[name])
    status, answer = ask(
        models, "POST", f"/{name}/v1/embeddings", json.dumps({"input": "cat", "model": other}).encode()
    )
    assert (status, answer["model"]) == (200, SERVED[name])


@pytest.mark.parametrize("name", SERVED)
def test_the_field_model_names_the_model(models: Address, name: str) -> None:
    model, other = SERVED[name], next(model for key, model in SERVED.items() if key != name)
    quoting = {"input": json.dumps({"model": other}), "model": model}
    large = {"input": ["cat " * 250] * 1500, "model": model}
    bodies = [json.dumps(body).encode() for body in ({"model": model, "input": "cat"}, quoting, large)]
    bodies.append(json.dumps({"input": "cat", "model": model}, indent=2).replace("/", "\\/").encode())
    assert len(bodies[2]) > 1 << 20
    for body in bodies:
        for sent in (body, iter([body[:7], body[7:]])):  # at once, and in chunks
            status, answer = ask(models, "POST", "/v1/embeddings", sent)
            assert (status, answer["model"]) == (200, model)


@pytest.mark.parametrize("body", [{"input": "cat", "model": "tests/other"}, {"input": "cat"}])
def test_a_model_that_nobody_serves_is_refused(models: Address, body: dict[str, str]) -> None:
    status, answer = ask(models, "POST", "/v1/embeddings", json.dumps(body).encode())
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (404, "model", "model_not_found")
