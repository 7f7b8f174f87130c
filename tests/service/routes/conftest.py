"""The whole app on real artifacts, in this process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.runner import Runner
from service.services import Readiness
from tests.service.conftest import Served, settings_of

Client = Callable[[Path], TestClient]


def post(client: TestClient, path: str, **body: Any) -> Any:
    """The answer to a body that is taken."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


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
