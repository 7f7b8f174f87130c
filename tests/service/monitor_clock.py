"""A clock for the monitor of a crew: what hangs is noticed when a test says so, not when the machine is slow."""

import threading
import time
from types import SimpleNamespace

import pytest

from service import crew


class MonitorClock:
    """Real time, but for single looks of the monitor, which happen as if later. It looks often meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._offset = 0.0
        monkeypatch.setattr(crew, "time", SimpleNamespace(monotonic=self._monotonic))
        monkeypatch.setattr(crew, "_TICK", 0.005)

    def look_later_by(self, seconds: float) -> None:
        """Makes the monitor's next look so many seconds later."""
        self._offset = seconds

    def _monotonic(self) -> float:
        if threading.current_thread().name != "polyhead-monitor":
            return time.monotonic()
        offset, self._offset = self._offset, 0.0
        return time.monotonic() + offset
