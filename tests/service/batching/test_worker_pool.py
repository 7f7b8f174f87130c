import math
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from service.batching import worker_pool
from service.batching.worker_pool import Worker, WorkerPool
from tests.service.fake_backend import PATIENCE
from tests.service.monitor_clock import MonitorClock


class Scene:
    """A pool whose workers wait for orders, and what it reported."""

    def __init__(self, *, size: int = 1, max_run_seconds: float = 60.0, max_abandoned: int = 1) -> None:
        self.lock = threading.Lock()
        self.orders = threading.Condition(self.lock)
        self.next_order: Callable[[Worker], None] | None = None
        self.has_ended = False
        self.lost: list[Worker] = []
        self.failures = 0
        self.pool = WorkerPool(
            size=size,
            work=self.work,
            lock=self.lock,
            on_lost=self.on_lost,
            on_failed=self.on_failed,
            max_run_seconds=max_run_seconds,
            max_abandoned=max_abandoned,
        )

    def work(self, worker: Worker) -> None:
        while True:
            with self.lock:
                worker.busy_since = None
                assert self.orders.wait_for(lambda: self.next_order or self.has_ended or worker.is_dismissed, PATIENCE)
                if self.has_ended or worker.is_dismissed:
                    return
                order, self.next_order = self.next_order, None
                worker.busy_since = time.monotonic()
            assert order is not None
            order(worker)

    def order(self, order: Callable[[Worker], None]) -> None:
        with self.lock:
            self.next_order = order
            self.orders.notify()

    def on_lost(self, worker: Worker) -> None:
        self.lost.append(worker)
        self.orders.notify_all()

    def on_failed(self) -> None:
        self.failures += 1
        self.orders.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self.lock:
            assert self.orders.wait_for(condition, PATIENCE)

    def end(self) -> bool:
        with self.lock:
            self.has_ended = True
            self.orders.notify_all()
            has_returned = self.pool.wait_returned(PATIENCE)
        return self.pool.stop(0.0) and has_returned


def die(_worker: Worker) -> None:
    raise SystemExit


def test_is_not_alive_between_a_death_and_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "MONITOR_SECONDS", 0.01)
    scene = Scene()
    scene.pool.start()
    start, refused = threading.Thread.start, threading.Semaphore(0)

    def refuse(_thread: threading.Thread) -> None:
        refused.release()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    scene.order(die)
    assert refused.acquire(timeout=PATIENCE)
    assert not scene.pool.is_alive()
    assert refused.acquire(timeout=PATIENCE), "it tries again"
    monkeypatch.setattr(threading.Thread, "start", start)
    began = threading.Event()
    scene.order(lambda _worker: began.set())
    assert began.wait(PATIENCE)
    assert scene.pool.is_alive()
    assert len(scene.lost) == 1
    assert scene.end()


def test_a_run_over_the_limit_is_not_alive_even_before_the_monitor_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "MONITOR_SECONDS", 3600.0)
    looked, look = threading.Event(), WorkerPool.replace_lost

    def look_and_tell(watched: WorkerPool, now: float) -> None:
        look(watched, now)
        looked.set()

    monkeypatch.setattr(WorkerPool, "replace_lost", look_and_tell)
    scene = Scene(max_run_seconds=3600.0 * 4)
    scene.pool.start()
    assert looked.wait(PATIENCE)  # the next look is an hour away
    began, finish, again = threading.Event(), threading.Event(), threading.Event()

    def overdue(worker: Worker) -> None:
        worker.busy_since = -math.inf
        began.set()
        assert finish.wait(PATIENCE)

    scene.order(overdue)
    assert began.wait(PATIENCE)
    assert not scene.pool.is_alive()
    finish.set()
    scene.order(lambda _worker: again.set())
    assert again.wait(PATIENCE)
    assert (scene.pool.is_alive(), scene.lost) == (True, [])
    assert scene.end()


def hang(scene: Scene, clock: MonitorClock, finish: threading.Event) -> None:
    """Has a worker hang until `finish`, and the monitor notice it."""
    began, losses = threading.Event(), len(scene.lost)

    def order(_worker: Worker) -> None:
        began.set()
        assert finish.wait(PATIENCE)

    scene.order(order)
    assert began.wait(PATIENCE)
    clock.look_later_by(61.0)
    scene.wait_until(lambda: len(scene.lost) > losses)


def test_gives_up_once_when_too_many_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, finish = MonitorClock(monkeypatch), threading.Event()
    scene = Scene(size=2, max_abandoned=1)
    scene.pool.start()
    hang(scene, clock, finish)
    assert (scene.failures, scene.pool.is_alive()) == (0, True)
    hang(scene, clock, finish)
    scene.wait_until(lambda: scene.failures == 1)
    assert not scene.pool.is_alive()
    finish.set()
    for worker in scene.lost:
        worker.thread.join(PATIENCE)
    assert not scene.pool.is_alive(), "permanently"
    assert not scene.end()
    assert scene.failures == 1


def test_hanging_threads_that_come_back_are_no_longer_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MonitorClock(monkeypatch)
    scene = Scene(max_abandoned=1)
    scene.pool.start()
    for _ in range(4):
        finish = threading.Event()
        hang(scene, clock, finish)
        finish.set()
        scene.lost[-1].thread.join(PATIENCE)
    assert (scene.failures, scene.pool.is_alive()) == (0, True)
    assert scene.end()


def test_a_process_that_was_stopped_for_a_while_has_no_hanging_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pause = MonitorClock(monkeypatch), 0.0
    monkeypatch.setattr(worker_pool, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + pause))
    scene, began, finish = Scene(max_abandoned=0), threading.Event(), threading.Event()
    scene.pool.start()

    def order(_worker: Worker) -> None:
        began.set()
        assert finish.wait(PATIENCE)

    scene.order(order)
    assert began.wait(PATIENCE)
    clock.wait_for_look()
    pause = 3600.0
    clock.wait_for_look()
    assert (scene.lost, scene.failures, scene.pool.is_alive()) == ([], 0, True)
    finish.set()
    assert scene.end()


def test_workers_that_die_at_once_are_not_hired_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = MonitorClock(monkeypatch), 1000.0
    monkeypatch.setattr(worker_pool, "time", SimpleNamespace(monotonic=lambda: now))
    hired = threading.Semaphore(0)

    def die(_worker: Worker) -> None:
        hired.release()
        raise SystemExit("no such luck")

    lock = threading.Lock()

    def is_empty() -> bool:
        with lock:  # not while the monitor replaces the dead
            return not pool.workers

    pool = WorkerPool(
        size=2,
        work=die,
        lock=lock,
        on_lost=lambda _worker: None,
        on_failed=lambda: None,
        max_run_seconds=60.0,
        max_abandoned=1,
    )
    pool.start()
    for _ in range(2):
        for _ in range(worker_pool._MAX_DEATHS):
            assert hired.acquire(timeout=PATIENCE)
        while not is_empty():  # one that was hired with the last to die may still live
            clock.wait_for_look()
        while hired.acquire(blocking=False):
            pass
        clock.wait_for_look()
        assert not hired.acquire(blocking=False), "as many as may die within a second, and no more"
        assert not pool.is_alive()
        now += 1.0
    pool.stop(0.0)
