"""The service in this process, with a fake backend at the seam."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load
from starlette.testclient import TestClient

from polyhead import Engine
from service.app import ROUTES, create_app
from service.http.route import Route
from service.observability.tracing import OpenTelemetryTracing
from service.services import Readiness
from service.settings import Settings, read_settings
from tests.service.fake_engine import (
    FakeBackend,
    FakeDecomposer,
    load_fake_engine,
    load_fake_runner,
    write_fake_artifact,
)

Serve = Callable[..., "Served"]
EngineOf = Callable[[Path], Engine]


class Served:
    """An app that answers, and its parts."""

    def __init__(
        self,
        settings: Settings,
        backend: FakeBackend,
        tracing: OpenTelemetryTracing | None = None,
        routes: Sequence[Route] = ROUTES,
        decomposer: FakeDecomposer | None = None,
    ) -> None:
        self.readiness = Readiness()
        app, self.services = create_app(settings, self.readiness, tracing, routes)
        self.model = self.services.model
        self.engine = load_fake_runner(settings, self.model.observe_batch, backend, decomposer=decomposer)
        self.backend = backend
        self.client = TestClient(app)

    def start(self) -> None:
        self.services.models.start(self.model, self.engine)
        self.readiness.start()

    def close(self) -> None:
        self.client.close()
        self.backend.gate.set()
        self.engine.close(5)

    def encode(self, body: Any, **headers: str) -> Any:
        return self.client.post("/encode", json=body, headers={key.replace("_", "-"): headers[key] for key in headers})

    def metric(self, name: str, **labels: str) -> float:
        registry = self.services.metrics.registry
        value = registry.get_sample_value(name, labels)
        if value is None:
            value = registry.get_sample_value(name, {**labels, "model": self.model.name})
        assert value is not None, f"no series {name} {labels}"
        return value


def read_tensors(content: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays of an answer in safetensors, and the rest of it."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return load(content), json.loads(header["__metadata__"]["answer"])


def bodies(text: str) -> dict[str, dict[str, Any]]:
    """What each route that an embedder answers takes of a text, with `model` beside it or not."""
    return {
        "/encode": {"inputs": text},
        "/embed": {"inputs": text},
        "/embed_all": {"inputs": text},
        "/": {"inputs": text},
        "/v1/embeddings": {"input": text},
        "/embeddings": {"input": text},
        "/v2/embed": {"texts": [text]},
        "/similarity": {"source": text, "targets": [text]},
        "/explain": {"a": text, "b": text},
        "/tokenize": {"inputs": text},
        "/rerank": {"query": text, "texts": [text]},
        "/v1/rerank": {"query": text, "documents": [text]},
        "/v2/rerank": {"query": text, "documents": [text]},
        "/score": {"queries": text, "documents": text},
        "/zero-shot": {"inputs": text, "candidate_labels": ["cat", "dog"]},
    }


@pytest.fixture(scope="session")
def fake_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_artifact(tmp_path_factory.mktemp("fake-artifact"))


@cache  # reading the command line takes a third of a small test
def settings_of(artifact: Path, *flags: str) -> Settings:
    return read_settings(["--model", str(artifact), "--workers", "1", *flags])


@pytest.fixture
def settings(fake_artifact: Path) -> Settings:
    return settings_of(fake_artifact)


@pytest.fixture
def serve(fake_artifact: Path) -> Iterator[Serve]:
    """Starts apps with flags, ready unless told otherwise."""
    started: list[Served] = []

    def start(*flags: str, backend: FakeBackend | None = None, ready: bool = True, **parts: Any) -> Served:
        started.append(Served(settings_of(fake_artifact, *flags), backend or FakeBackend(), **parts))
        if ready:
            started[-1].start()
        return started[-1]

    yield start
    for served in started:
        served.close()


@pytest.fixture
def served(serve: Serve) -> Served:
    made: Served = serve()
    return made


@pytest.fixture(scope="module")
def app_of_module(fake_artifact: Path) -> Iterator[Served]:
    made = Served(settings_of(fake_artifact), FakeBackend())
    made.start()
    yield made
    made.close()


@pytest.fixture
def shared(app_of_module: Served) -> Served:
    """The module's app, for a test that changes nothing of it and looks at no metric; no run is noted yet."""
    app_of_module.backend.batches.clear()
    return app_of_module


@pytest.fixture(scope="module")
def engine_of() -> Iterator[EngineOf]:
    """The engine of an artifact, loaded once a module."""
    with ExitStack() as stack:
        yield cache(lambda artifact: stack.enter_context(Engine.load(artifact)))


@pytest.fixture
def backend() -> FakeBackend:
    """Of `engine`."""
    return FakeBackend()


@pytest.fixture
def engine(settings: Settings, backend: FakeBackend) -> Iterator[Engine]:
    """An engine over a fake."""
    with load_fake_engine(settings, backend) as loaded:
        yield loaded
