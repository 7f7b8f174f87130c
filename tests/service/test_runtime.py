"""Threads that run the model, planned from settings and machine."""

import logging
from pathlib import Path

import pytest

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
    ("precision", "provider", "has_products", "warning"),
    [
        ("int8", "cpu", False, "int8 will not pay on this processor"),
        ("int8", "cpu", True, ""),
        ("int8", "cpu", None, ""),
        ("fp16", "cpu", None, "fp16 is converted at every step on a CPU"),
        ("fp16", "cuda", None, ""),
        ("fp32", "cpu", False, ""),
    ],
)
def test_a_precision_that_is_slow_here_is_warned_of(
    precision: str,
    provider: str,
    has_products: bool | None,
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(runtime, "has_integer_products", lambda: has_products)
    with caplog.at_level(logging.WARNING):
        warn_of_slow_precision(precision, provider)
    assert [message[: len(warning)] for message in caplog.messages] == ([warning] if warning else [])
