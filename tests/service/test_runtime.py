"""Threads that run the model, planned from settings and machine."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.artifact import read_manifest
from service import runtime
from service.runtime import Runtime, plan_runtime, warn_of_slow_precision
from service.settings import read_settings


def planned(monkeypatch: pytest.MonkeyPatch, *flags: str, cores: int = 4) -> Runtime:
    monkeypatch.setattr(runtime, "usable_cores", lambda: cores)
    return plan_runtime(read_settings(["--model", str(Path("some")), *flags]))


@pytest.mark.parametrize(
    ("flags", "workers"),
    [
        ([], 4),
        (["--intra-op-threads", "2"], 2),
        (["--intra-op-threads", "8"], 1),
        (["--workers", "3"], 3),
        (["--provider", "cuda"], 1),
    ],
)
def test_workers_keep_every_core_busy_unless_told_otherwise(
    flags: list[str], workers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert planned(monkeypatch, *flags).workers == workers
    assert not caplog.records


def test_more_threads_than_cores_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert planned(monkeypatch, "--workers", "3", "--intra-op-threads", "2") == Runtime("cpu", 3, 2)
    assert caplog.messages == [
        "3 workers with 2 threads compete for 4 usable cores: set --workers 2, or 0 to have it chosen"
    ]


@pytest.mark.parametrize(
    ("artifact", "provider", "has_products", "warning"),
    [
        ({"precision": "int8"}, "cpu", False, "this int8 artifact is slow on a processor without VNNI"),
        ({"precision": "int8", "fits_16_bits": True}, "cpu", False, ""),
        ({"precision": "int8"}, "cpu", True, ""),
        ({"precision": "int8"}, "cpu", None, ""),
        ({"precision": "fp16"}, "cpu", None, "fp16 is converted at every step on a CPU"),
        ({"precision": "fp16"}, "cuda", None, ""),
        ({"precision": "fp32"}, "cpu", False, ""),
    ],
)
def test_an_artifact_that_is_slow_here_is_warned_of(
    default_artifact: Path,
    artifact: dict[str, Any],
    provider: str,
    has_products: bool | None,
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(runtime, "has_integer_products", lambda: has_products)
    manifest = replace(read_manifest(default_artifact), **artifact)
    with caplog.at_level(logging.WARNING):
        warn_of_slow_precision(manifest, provider)
    assert [message[: len(warning)] for message in caplog.messages] == ([warning] if warning else [])
