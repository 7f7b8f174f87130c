"""A clock for the monitor of a worker pool: what hangs is noticed when a test says so, not when the machine is slow."""

import threading

import pytest

from service.batching import worker_pool
from service.batching.worker_pool import WorkerPool
from tests.service.fake_backend import PATIENCE


class MonitorClock:
    """Real time, but for single looks of the monitor, which happen as if later. It looks often meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._offset = 0.0
        self._lock = threading.Lock()
        self._has_looked = threading.Event()
        look = WorkerPool.replace_lost

        def look_later(watched: WorkerPool, now: float) -> None:
            with self._lock:
                offset, self._offset = self._offset, 0.0
                self._has_looked.set()
            look(watched, now + offset)

        monkeypatch.setattr(WorkerPool, "replace_lost", look_later)
        monkeypatch.setattr(worker_pool, "MONITOR_SECONDS", 0.005)

    def look_later_by(self, seconds: float) -> None:
        """Makes the monitor's next look this many seconds later."""
        with self._lock:
            self._offset = seconds
            self._has_looked.clear()

    def wait_for_look(self) -> None:
        """Waits until it has looked, and once more, so that it has drawn its conclusions too."""
        for _ in range(2):
            assert self._has_looked.wait(PATIENCE)
            self._has_looked.clear()
