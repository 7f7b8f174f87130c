"""Which runs are slow and which hang, by what the settings promise."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import service.runner
from model.artifact import ArtifactError, read_manifest
from polyhead import Engine
from service.batching import batcher
from service.runner import Runner, plan_runtime, warn_of_slow_precision
from service.settings import read_settings
from tests.service.fake_engine import FakeBackend
from tests.service.process import wait_until


@pytest.mark.parametrize(
    ("request_timeout", "seconds", "is_alive"),
    [(None, 1e6, True), (30.0, 55.0, True), (30.0, 65.0, False), (600.0, 620.0, True), (600.0, 640.0, False)],
)
def test_a_run_hangs_once_no_deadline_can_be_left(
    request_timeout: float | None, seconds: float, is_alive: bool, fake_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FakeBackend()
    backend.gate.clear()
    monkeypatch.setattr(service.runner, "load_backend", lambda *_, **__: backend)
    flags = ["--model", str(fake_artifact), "--request-timeout", str(request_timeout)]
    runner = Runner.load(fake_artifact, read_settings(flags) if request_timeout else None)
    with Engine(runner) as engine:
        caller = threading.Thread(target=engine.encode, args=("cat",))
        caller.start()
        wait_until(lambda: bool(backend.batches))
        with monkeypatch.context() as later:
            later.setattr(batcher, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + seconds))
            assert runner.is_alive() == is_alive
        backend.gate.set()
        caller.join()


def test_explaining_too_waits_as_long_as_the_settings_say(fake_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.runner, "load_backend", lambda *_, **__: FakeBackend())
    queues = Mock(), Mock()
    for name, queue in zip(("Batcher", "DecompositionQueue"), queues, strict=True):
        monkeypatch.setattr(service.runner, name, queue)
    flags = ["--model", str(fake_artifact), "--max-queue-delay", "7", "--workers", "3"]
    Runner.load(fake_artifact, read_settings(flags)).close(0)
    texts, explaining = (queue.call_args.kwargs for queue in queues)
    assert (texts["max_queue_delay"], texts["workers"]) == (7.0, 3)
    assert (explaining["max_delay"], explaining["threads"]) == (7.0, 3)


def test_a_load_that_fails_late_leaves_no_threads(fake_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.runner, "load_backend", lambda *_, **__: FakeBackend())
    monkeypatch.setattr("service.runner.TokenOutputs.load", Mock(side_effect=ArtifactError("no layers")))
    before = threading.enumerate()
    with pytest.raises(ArtifactError, match="no layers"):
        Runner.load(fake_artifact)
    assert threading.enumerate() == before


CHOSEN = "3 workers with 2 threads compete for 4 usable cores: set --workers 2, or 0 to have it chosen"
TOO_MANY = "1 workers with 8 threads compete for 4 usable cores: set --intra-op-threads 4"


@pytest.mark.parametrize(
    ("flags", "workers", "warnings"),
    [
        ("", 4, []),
        ("--intra-op-threads 2", 2, []),
        ("--workers 3", 3, []),
        ("--provider cuda", 1, []),
        ("--workers 3 --intra-op-threads 2", 3, [CHOSEN]),
        ("--intra-op-threads 8", 1, [TOO_MANY]),
    ],
)
def test_workers_keep_every_core_busy_unless_told_otherwise(
    flags: str, workers: int, warnings: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service.runner, "usable_cores", lambda: 4)
    assert plan_runtime(read_settings(["--model", "some", *flags.split()])).workers == workers
    assert caplog.messages == warnings


SLOW_INT8 = "this int8 artifact is slow on a processor without VNNI"
SLOW_FP16 = "fp16 is converted at every step on a CPU"


@pytest.mark.parametrize(
    ("artifact", "provider", "has_products", "warning"),
    [
        ({"precision": "int8"}, "cpu", False, SLOW_INT8),
        ({"precision": "int8", "fits_16_bits": True}, "cpu", False, None),
        ({"precision": "int8"}, "cpu", True, None),
        ({"precision": "int8"}, "cpu", None, None),
        ({"precision": "fp16"}, "cpu", None, SLOW_FP16),
        ({"precision": "fp16"}, "cuda", None, None),
        ({"precision": "fp32"}, "cpu", False, None),
    ],
)
def test_an_artifact_that_is_slow_here_is_warned_of(
    artifact: dict[str, Any],
    provider: str,
    has_products: bool | None,
    warning: str | None,
    fake_artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(service.runner, "has_integer_products", lambda: has_products)
    warn_of_slow_precision(replace(read_manifest(fake_artifact), **artifact), provider)
    assert [message.startswith(str(warning)) for message in caplog.messages] == ([] if warning is None else [True])
