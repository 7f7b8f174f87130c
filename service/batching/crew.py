"""A crew of worker threads that is kept complete: a member that dies or hangs is replaced.

It does not know what the members work on. Python cannot stop a thread: one that hangs is dismissed, left behind, and
ends by itself should its run ever return.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

_TICK = 1.0  # seconds between looks at the members, when nothing wakes the monitor before
_MOST_DEATHS = 8  # of members within a tick; past it nobody is hired before the next, and the crew is not alive


class Member:
    """One worker thread. All but `thread` is guarded by the crew's lock.

    Attributes:
        busy_since: when its current run began (`time.monotonic`), or None between runs.
        dismissed: whether it was given up on; what it still brings must be ignored, and it is to return.
        returned: whether it ended as it should.
        died: whether it ended otherwise.
        thread: the thread.
    """

    __slots__ = ("busy_since", "died", "dismissed", "returned", "thread")

    def __init__(self, name: str, main: Callable[["Member"], None]) -> None:
        self.busy_since: float | None = None
        self.dismissed = False
        self.returned = False
        self.died = False
        self.thread = threading.Thread(target=main, args=(self,), name=name, daemon=True)


class Crew:
    """Keeps `size` threads at work until each has returned.

    Args:
        size: members.
        work: what a member does; returns when there is no more work, or it was dismissed.
        lock: guards the members, and whatever `work` shares; the callbacks run under it.
        on_lost: told of a member that died or was dismissed, before its replacement starts.
        on_failed: told once when the crew gives up, because too many members hang.
        max_run_seconds: a run that takes longer is taken for hanging.
        max_abandoned: hanging threads to leave behind at one time. Each holds memory and perhaps a core; with more, a
            new process is the better cure.
    """

    def __init__(
        self,
        *,
        size: int,
        work: Callable[[Member], None],
        lock: threading.Lock,
        on_lost: Callable[[Member], None],
        on_failed: Callable[[], None],
        max_run_seconds: float,
        max_abandoned: int,
    ) -> None:
        self._size = size
        self._work = work
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._on_lost = on_lost
        self._on_failed = on_failed
        self._max_run_seconds = max_run_seconds
        self._max_abandoned = max_abandoned
        self._members: list[Member] = []
        self._abandoned: list[Member] = []
        self._deaths: deque[float] = deque(maxlen=_MOST_DEATHS)
        self._hired = 0
        self._failed = False
        self._stopped = False
        self._monitor = threading.Thread(target=self._watch, name="polyhead-monitor", daemon=True)

    def start(self) -> None:
        """Starts the members and the monitor."""
        with self._lock:
            self._complete()
        self._monitor.start()

    def is_alive(self) -> bool:
        """Whether every member is there and none is in one run for too long."""
        now = time.monotonic()
        with self._lock:
            return (
                self._monitor.is_alive()
                and not self._failed
                and len(self._members) == self._size
                and all(m.thread.is_alive() and not m.died and not self._is_overdue(m, now) for m in self._members)
            )

    def wait_returned(self, timeout: float) -> bool:
        """Waits until every member has returned; False when that took too long, or will never be. Lock held."""
        if self._monitor.ident is None:
            return True  # never started
        self._changed.wait_for(self._is_over, timeout)
        return self._has_returned()

    def dismiss_all(self) -> None:
        """Gives up on the members that have not returned; what they still bring is ignored. Lock held."""
        for member in self._members:
            if not member.returned:
                self._dismiss(member)
        self._members = [member for member in self._members if member.returned]

    def stop(self) -> bool:
        """Ends the monitor and joins the members that returned; False while a dismissed one is still in a run."""
        with self._lock:
            self._stopped = True
            self._changed.notify_all()
        for thread in (self._monitor, *(member.thread for member in self._members)):
            if thread.ident is not None:  # it was started
                thread.join()
        return not any(member.thread.is_alive() for member in self._abandoned)

    def _watch(self) -> None:
        tick = min(_TICK, self._max_run_seconds / 4)
        looked = time.monotonic()
        with self._lock:
            while not self._stopped:
                self._tend(looked)
                self._changed.wait(tick)
                before, looked = looked, time.monotonic()
                self._count_out(looked - before - tick, looked)

    def _count_out(self, late: float, now: float) -> None:
        """Takes out of every run what the monitor woke too late: it hung nowhere while the process was stopped.

        Ctrl-Z, a paused container or a frozen machine would else be taken for hanging workers, all at once. Lock held.
        """
        for member in self._members:
            if late > 0 and member.busy_since is not None:
                member.busy_since = min(now, member.busy_since + late)

    def _tend(self, now: float) -> None:
        """Replaces who died or hangs. Lock held."""
        self._abandoned = [member for member in self._abandoned if member.thread.is_alive()]
        for member in list(self._members):
            if member.died:
                self._deaths.append(now)
                self._lose(member)
            elif self._is_overdue(member, now):
                logger.error("%s hangs: over %g s in one run", member.thread.name, self._max_run_seconds)
                self._dismiss(member)
                self._lose(member)
        if len(self._abandoned) > self._max_abandoned and not self._failed:
            logger.critical("%d workers hang; giving up, this process has to be replaced", len(self._abandoned))
            self._failed = True
            self._on_failed()
            self._changed.notify_all()
        self._complete()

    def _is_overdue(self, member: Member, now: float) -> bool:
        return member.busy_since is not None and now - member.busy_since > self._max_run_seconds

    def _dismiss(self, member: Member) -> None:
        member.dismissed = True
        self._abandoned.append(member)

    def _lose(self, member: Member) -> None:
        self._members.remove(member)
        self._on_lost(member)

    def _complete(self) -> None:
        """Hires until the crew is complete; tried again at the next tick where the system has no thread to give.

        Also then where members die as soon as they start: hiring at once for ever would only burn the processor.
        """
        if len(self._deaths) == _MOST_DEATHS and time.monotonic() - self._deaths[0] < _TICK:
            return
        while len(self._members) < self._size and not (self._failed or self._stopped):
            member = Member(f"polyhead-worker-{self._hired}", self._main)
            try:
                member.thread.start()
            except RuntimeError:
                logger.exception("no thread could be started for a worker")
                return
            self._hired += 1
            self._members.append(member)

    def _main(self, member: Member) -> None:
        returned = False
        try:
            self._work(member)
            returned = True
        except BaseException:
            logger.exception("%s died", member.thread.name)
        finally:
            with self._lock:
                member.returned, member.died = returned, not returned
                self._changed.notify_all()

    def _has_returned(self) -> bool:
        return len(self._members) == self._size and all(member.returned for member in self._members)

    def _is_over(self) -> bool:
        return self._failed or self._has_returned()
