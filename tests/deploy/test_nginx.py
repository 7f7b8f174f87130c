"""nginx with the configuration as it stands, in front of replicas that end while they have a request."""

import http.client
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler

import pytest

from benchmarks.lib.load import Address
from benchmarks.lib.server import free_port
from benchmarks.service.replicas import nginx
from model.artifact import read_manifest, write_manifest
from tests.deploy.tools import DEPLOY, or_skip, serving
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import fake_server

Asked = list[str]
MODELS = DEPLOY / "nginx/models.conf"
SERVED = {"minilm": "sentence-transformers/all-MiniLM-L6-v2", "bge": "BAAI/bge-small-en-v1.5"}


class Replica(BaseHTTPRequestHandler):
    """Is ready; answers a request with its status, or closes the connection, as a process does that it ends."""

    asked: Asked
    status: int | None

    def do_GET(self, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.asked.append(self.path)
        if self.status is None:
            self.close_connection = True
        else:
            self.do_GET(self.status)

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - as the library calls it


@contextmanager
def replica(status: int | None) -> Iterator[tuple[int, Asked]]:
    asked: Asked = []
    with serving(type("Kept", (Replica,), {"asked": asked, "status": status})) as port:
        yield port, asked


def ask(address: Address, method: str, path: str, body: bytes | Iterable[bytes] | None = None) -> tuple[int, bytes]:
    """Status and body of an answer."""
    with closing(http.client.HTTPConnection(address.host, address.port, timeout=10)) as client:
        client.request(method, path, body, {"content-type": "application/json"})
        with client.getresponse() as answer:
            return answer.status, answer.read()


def post(replicas: list[int]) -> int:
    """Status of a request through nginx."""
    with or_skip(nginx(replicas)) as proxy:
        return ask(proxy.address, "POST", "/encode", b"{}")[0]


def test_a_request_that_ends_one_replica_is_not_given_to_the_second() -> None:
    with replica(None) as (first, asked_first), replica(None) as (second, asked_second):
        assert post([first, second]) == 502
        assert len(asked_first + asked_second) == 1


def test_a_replica_that_is_gone_or_not_ready_is_passed_over() -> None:
    with replica(200) as (port, asked), replica(503) as (loading, asked_loading), replica(503) as (second, _):
        assert [post([free_port(), port]), post([port, free_port()])] == [200, 200]
        assert len(asked) == 2
        assert [post([loading, port]), post([port, loading])] == [200, 200]
        assert asked_loading
        assert len(asked) == 4
        assert post([loading, second]) == 503


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """Two services with an artifact each, behind one nginx."""
    folder = tmp_path_factory.mktemp("models")
    for name, model in SERVED.items():
        directory = write_fake_artifact(folder / name)
        write_manifest(directory, replace(read_manifest(directory), model=model))
    with ExitStack() as running:
        servers = [running.enter_context(fake_server(folder / name)) for name in SERVED]
        ports = [server.wait_until_ready().address[1] for server in servers]
        proxy = running.enter_context(or_skip(nginx(ports, path=MODELS, ready="/bge/readyz")))
        yield proxy.address


def embed(address: Address, path: str, body: bytes | Iterable[bytes]) -> str:
    """The model that answered."""
    status, answer = ask(address, "POST", f"{path}/v1/embeddings", body)
    assert status == 200, answer
    return str(json.loads(answer)["model"])


@pytest.mark.parametrize(("name", "other"), [("minilm", "bge"), ("bge", "minilm")])
def test_the_path_or_the_field_model_names_the_model(models: Address, name: str, other: str) -> None:
    model, others = SERVED[name], SERVED[other]
    assert json.loads(ask(models, "GET", f"/{name}/info")[1])["model"] == model
    assert embed(models, f"/{name}", json.dumps({"input": "cat", "model": others}).encode()) == model
    quoting = {"input": json.dumps({"model": others}), "model": model}
    large = {"input": ["cat " * 250] * 1500, "model": model}
    bodies = [json.dumps(body).encode() for body in ({"model": model, "input": "cat"}, quoting, large)]
    bodies.append(json.dumps({"input": "cat", "model": model}, indent=2).replace("/", "\\/").encode())
    assert len(bodies[2]) > 1 << 20
    for body in bodies:
        for sent in (body, iter([body[:7], body[7:]])):  # at once, and in chunks
            assert embed(models, "", sent) == model


@pytest.mark.parametrize("body", [{"input": "cat", "model": "tests/other"}, {"input": "cat"}])
def test_a_model_that_nobody_serves_is_refused(models: Address, body: dict[str, str]) -> None:
    status, answer = ask(models, "POST", "/v1/embeddings", json.dumps(body).encode())
    error = json.loads(answer)["error"]
    assert (status, error["param"], error["code"]) == (404, "model", "model_not_found")
