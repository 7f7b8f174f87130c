"""Workers whose runs raise, hang, or go on after the end, seen through the batcher."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from service.batching import executor
from service.errors import InferenceFailed
from tests.service.batching.test_batcher import begin, begin_busy, pooled, raising, running
from tests.service.fake_backend import PATIENCE, FakeBackend, job


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
async def test_a_worker_outlives_whatever_its_backend_raises(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    backend = FakeBackend()
    backend.on_token[5] = raising(error)
    with running(backend) as batcher:
        busy = await begin_busy(batcher, backend)
        doomed, behind = await begin(batcher, job(5)), await begin(batcher, job(7, 7, 7))
        backend.release()
        with pytest.raises(InferenceFailed):
            await doomed
        assert pooled(await behind) == [[21, 3]]
        assert batcher.is_alive()
        await asyncio.gather(*busy)
    assert type(error).__name__ in caplog.text


async def test_a_run_that_takes_too_long_is_not_alive_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    a_minute_later = SimpleNamespace(monotonic=lambda: time.monotonic() + 61.0)
    backend = FakeBackend()
    with running(backend, max_run_seconds=60.0) as batcher:
        busy = await begin_busy(batcher, backend)
        assert batcher.is_alive()
        with monkeypatch.context() as later:
            later.setattr(executor, "time", a_minute_later)
            assert not batcher.is_alive()
        backend.release()
        await asyncio.gather(*busy)
        while any(worker.busy_since is not None for worker in batcher.executor.workers):
            await asyncio.sleep(0)
        with monkeypatch.context() as later:
            later.setattr(executor, "time", a_minute_later)
            assert batcher.is_alive(), "a worker that waits for work does not hang"


async def test_an_end_waits_a_moment_for_a_run_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_CANCEL_SECONDS", PATIENCE)
    backend = FakeBackend()
    with running(backend) as batcher:
        (busy,) = await begin_busy(batcher, backend)
        threading.Timer(0.1, backend.release).start()
        assert not await asyncio.to_thread(batcher.close, 0.01)
        assert backend.is_closed
        await asyncio.wait([busy])
