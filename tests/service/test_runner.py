"""Which runs are slow and which hang, by what the settings promise."""

import threading
from pathlib import Path
from typing import Any

import pytest

import service.runner
from service.engine import Engine
from service.errors import InferenceFailed
from service.settings import read_settings
from tests.service.fake_engine import FakeBackend
from tests.service.monitor_clock import MonitorClock


class Slow(FakeBackend):
    """Its runs begin, and go on until they may end."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()
        self.has_begun = threading.Event()
        self.gate.clear()

    def warm_up(self) -> None:
        pass

    def run(self, batch: Any) -> Any:
        self.has_begun.set()
        return super().run(batch)


@pytest.mark.parametrize(
    ("request_timeout", "seconds", "hangs"),
    [(None, 1e6, False), (30.0, 55.0, False), (30.0, 65.0, True), (600.0, 620.0, False), (600.0, 640.0, True)],
)
def test_a_run_hangs_once_no_deadline_can_be_left(
    request_timeout: float | None, seconds: float, hangs: bool, fake_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, backend = MonitorClock(monkeypatch), Slow()
    monkeypatch.setattr(service.runner, "OnnxBackend", lambda *_, **__: backend)
    flags = ["--model", str(fake_artifact), "--request-timeout", str(request_timeout)]
    settings = read_settings(flags) if request_timeout else None
    failures: list[BaseException] = []

    def encode() -> None:
        try:
            engine.encode("cat")
        except InferenceFailed as error:
            failures.append(error)

    with Engine.load(fake_artifact, settings) as engine:
        caller = threading.Thread(target=encode)
        caller.start()
        assert backend.has_begun.wait(30)
        clock.look_later_by(seconds)
        clock.wait_for_look()
        backend.gate.set()
        caller.join()
    assert len(failures) == hangs
