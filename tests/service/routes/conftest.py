"""The whole app on real artifacts, in this process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.runner import Runner
from service.services import Readiness
from service.settings import read_settings

Client = Callable[[Path], TestClient]


@pytest.fixture
def client() -> Iterator[Client]:
    """The app on an artifact."""
    runners: list[Runner] = []

    def start(artifact: Path) -> TestClient:
        settings = read_settings(["--model", str(artifact), "--workers", "1"])
        readiness = Readiness()
        app, services = create_app(settings, readiness)
        runner = Runner.load(artifact, settings, on_batch=services.model.observe_batch)
        runners.append(runner)
        services.models.start(services.model, runner)
        readiness.start()
        return TestClient(app)

    yield start
    for runner in runners:
        runner.close(5)
