"""The whole app on real artifacts, in this process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from model.artifact import Artifact
from service.app import create_app
from service.http.response import SAFETENSORS
from service.runner import Runner
from service.services import Readiness
from tests.service.conftest import Served, read_tensors, settings_of

Client = Callable[[Path], TestClient]


def post(client: TestClient, path: str, **body: Any) -> Any:
    """The answer to a body that is taken."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def post_tensors(client: TestClient, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays of what `POST /encode` answers in safetensors, and the rest."""
    response = client.post("/encode", json=body, headers={"accept": SAFETENSORS})
    assert response.status_code == 200, response.text
    return read_tensors(response.content)


def quantized(artifact: Path, vectors: Any, form: str) -> Any:
    """By sentence-transformers, within the artifact's ranges."""
    from sentence_transformers.util import quantize_embeddings  # noqa: PLC0415 - seconds to import

    ranges = Artifact.open(artifact).manifest.vector_ranges
    assert ranges is not None
    limits = np.array([ranges.minimum, ranges.maximum], dtype=np.float32)
    return quantize_embeddings(np.array(vectors, np.float32), precision=form, ranges=limits)


@contextmanager
def serving(artifact: Path, *flags: str) -> Iterator[TestClient]:
    """The app on an artifact, with flags, ready."""
    settings = settings_of(artifact, *flags)
    readiness = Readiness()
    app, services = create_app(settings, readiness)
    runner = Runner.load(artifact, settings, on_batch=services.model.observe_batch)
    services.models.start(services.model, runner)
    readiness.start()
    yield TestClient(app)
    runner.close(5)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """The app on an artifact, opened once a module."""
    with ExitStack() as stack:
        yield cache(lambda artifact: stack.enter_context(serving(artifact)))


@pytest.fixture
def served(shared: Served) -> Served:
    """In these files one app a module: a test that changes it, or counts, has its own by `serve`."""
    return shared
