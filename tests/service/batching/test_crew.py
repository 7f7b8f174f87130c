import math
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from service.batching import crew as crew_module
from service.batching.crew import Crew, Member
from tests.service.fake_backend import PATIENCE
from tests.service.monitor_clock import MonitorClock


class Scene:
    """A crew whose members wait for orders, and what it reported."""

    def __init__(self, *, size: int = 1, max_run_seconds: float = 60.0, max_abandoned: int = 1) -> None:
        self.lock = threading.Lock()
        self.orders = threading.Condition(self.lock)
        self.next_order: Callable[[Member], None] | None = None
        self.has_ended = False
        self.lost: list[Member] = []
        self.failures = 0
        self.crew = Crew(
            size=size,
            work=self.work,
            lock=self.lock,
            on_lost=self.on_lost,
            on_failed=self.on_failed,
            max_run_seconds=max_run_seconds,
            max_abandoned=max_abandoned,
        )

    def work(self, member: Member) -> None:
        while True:
            with self.lock:
                member.busy_since = None
                assert self.orders.wait_for(lambda: self.next_order or self.has_ended or member.dismissed, PATIENCE)
                if self.has_ended or member.dismissed:
                    return
                order, self.next_order = self.next_order, None
                member.busy_since = time.monotonic()
            assert order is not None
            order(member)

    def order(self, order: Callable[[Member], None]) -> None:
        with self.lock:
            self.next_order = order
            self.orders.notify()

    def on_lost(self, member: Member) -> None:
        self.lost.append(member)
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
            has_returned = self.crew.wait_returned(PATIENCE)
        return self.crew.stop() and has_returned


def die(_member: Member) -> None:
    raise SystemExit


def test_lives_while_all_its_members_do() -> None:
    scene = Scene(size=3)
    assert not scene.crew.is_alive()
    scene.crew.start()
    assert scene.crew.is_alive()
    assert scene.end()
    assert not scene.crew.is_alive()


def test_is_not_alive_between_a_death_and_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "_TICK", 0.01)
    scene = Scene()
    scene.crew.start()
    start, refused = threading.Thread.start, threading.Semaphore(0)

    def refuse(_thread: threading.Thread) -> None:
        refused.release()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    scene.order(die)
    assert refused.acquire(timeout=PATIENCE)
    assert not scene.crew.is_alive()
    assert refused.acquire(timeout=PATIENCE), "it tries again"
    monkeypatch.setattr(threading.Thread, "start", start)
    began = threading.Event()
    scene.order(lambda _member: began.set())
    assert began.wait(PATIENCE)
    assert scene.crew.is_alive()
    assert len(scene.lost) == 1
    assert scene.end()


def test_a_run_over_the_limit_is_not_alive_even_before_the_monitor_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "_TICK", 3600.0)
    looked, tend = threading.Event(), Crew._tend

    def tend_and_tell(watched: Crew, now: float) -> None:
        tend(watched, now)
        looked.set()

    monkeypatch.setattr(Crew, "_tend", tend_and_tell)
    scene = Scene(max_run_seconds=3600.0 * 4)
    scene.crew.start()
    assert looked.wait(PATIENCE)  # the next look is an hour away
    began, finish, again = threading.Event(), threading.Event(), threading.Event()

    def overdue(member: Member) -> None:
        member.busy_since = -math.inf
        began.set()
        assert finish.wait(PATIENCE)

    scene.order(overdue)
    assert began.wait(PATIENCE)
    assert not scene.crew.is_alive()
    finish.set()
    scene.order(lambda _member: again.set())
    assert again.wait(PATIENCE)
    assert (scene.crew.is_alive(), scene.lost) == (True, [])
    assert scene.end()


def hang(scene: Scene, clock: MonitorClock, finish: threading.Event) -> None:
    """Has a member hang until `finish`, and the monitor notice it."""
    began, losses = threading.Event(), len(scene.lost)

    def order(_member: Member) -> None:
        began.set()
        assert finish.wait(PATIENCE)

    scene.order(order)
    assert began.wait(PATIENCE)
    clock.look_later_by(61.0)
    scene.wait_until(lambda: len(scene.lost) > losses)


def test_gives_up_once_when_too_many_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, finish = MonitorClock(monkeypatch), threading.Event()
    scene = Scene(size=2, max_abandoned=1)
    scene.crew.start()
    hang(scene, clock, finish)
    assert (scene.failures, scene.crew.is_alive()) == (0, True)
    hang(scene, clock, finish)
    scene.wait_until(lambda: scene.failures == 1)
    assert not scene.crew.is_alive()
    finish.set()
    for member in scene.lost:
        member.thread.join(PATIENCE)
    assert not scene.crew.is_alive(), "for good"
    assert not scene.end()
    assert scene.failures == 1


def test_hanging_threads_that_come_back_are_no_longer_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MonitorClock(monkeypatch)
    scene = Scene(max_abandoned=1)
    scene.crew.start()
    for _ in range(4):
        finish = threading.Event()
        hang(scene, clock, finish)
        finish.set()
        scene.lost[-1].thread.join(PATIENCE)
    assert (scene.failures, scene.crew.is_alive()) == (0, True)
    assert scene.end()


def test_a_process_that_was_stopped_for_a_while_has_no_hanging_members(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pause = MonitorClock(monkeypatch), 0.0
    monkeypatch.setattr(crew_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + pause))
    scene, began, finish = Scene(max_abandoned=0), threading.Event(), threading.Event()
    scene.crew.start()

    def order(_member: Member) -> None:
        began.set()
        assert finish.wait(PATIENCE)

    scene.order(order)
    assert began.wait(PATIENCE)
    clock.wait_for_look()
    pause = 3600.0
    clock.wait_for_look()
    assert (scene.lost, scene.failures, scene.crew.is_alive()) == ([], 0, True)
    finish.set()
    assert scene.end()


def test_members_that_die_at_once_are_not_hired_without_end() -> None:
    started = threading.Semaphore(0)

    def die(_member: Member) -> None:
        started.release()
        raise SystemExit("no such luck")

    lock = threading.Lock()
    crew = Crew(
        size=2,
        work=die,
        lock=lock,
        on_lost=lambda _member: None,
        on_failed=lambda: None,
        max_run_seconds=60.0,
        max_abandoned=1,
    )
    crew.start()
    time.sleep(1.5)
    assert not crew.is_alive()
    crew.stop()
    hired = sum(1 for _ in iter(lambda: started.acquire(blocking=False), False))
    assert crew_module._MOST_DEATHS <= hired <= 4 * crew_module._MOST_DEATHS
