"""Worker threads, kept complete: one that dies or hangs is replaced.

It does not know what the workers work on. Python cannot stop a thread: one that hangs is dismissed, left behind, and
ends by itself if its run ever returns.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Lock, Thread

from service.batching.jobs import Job, PendingRequest
from service.batching.queue import QueuedText
from service.inference.backend import Cancellation

logger = logging.getLogger(__name__)

MONITOR_SECONDS = 1.0  # seconds between looks at the workers, when nothing wakes the monitor before
_MAX_DEATHS = 8  # of workers within a tick; beyond, none is started before the next, and the pool is not alive


class Worker:
    """One worker thread. All but `thread` is guarded by the lock of its pool.

    Attributes:
        thread: the thread.
        busy_since: when its current run began (`time.monotonic`), or None between runs.
        free_since: when it was woken, or done with the run before: what its next texts cost the queue begins there.
        is_dismissed: whether the pool gave up on it. It is to return, and results it still brings are ignored.
        has_returned: whether its work ended as it should.
        has_died: whether its work ended otherwise.
        running: the texts it runs.
        jobs: what is run for them. Kept here: a request may be over before its run is, and forgets its jobs then.
        retries: texts of a batch that failed, which it runs again one by one.
        cancellation: ends the current run early.
    """

    __slots__ = (
        "busy_since",
        "cancellation",
        "free_since",
        "has_died",
        "has_returned",
        "is_dismissed",
        "jobs",
        "retries",
        "running",
        "thread",
    )

    def __init__(self, name: str, main: Callable[["Worker"], None]) -> None:
        self.thread = threading.Thread(target=main, args=(self,), name=name, daemon=True)
        self.busy_since: float | None = None
        self.free_since = time.monotonic()
        self.is_dismissed = False
        self.has_returned = False
        self.has_died = False
        self.running: list[QueuedText[PendingRequest]] = []
        self.jobs: list[Job] = []
        self.retries: deque[QueuedText[PendingRequest]] = deque()
        self.cancellation = Cancellation()

    def begin(self, texts: list[QueuedText[PendingRequest]], now: float) -> None:
        """Notes the texts of the run that begins now."""
        self.running = texts
        self.jobs = [text.request.jobs[text.index] for text in texts]
        self.cancellation = Cancellation()
        self.busy_since = now

    def rest(self) -> None:
        """Notes that nothing runs, and lets go of what ran."""
        self.busy_since = None
        self.running, self.jobs, self.cancellation = [], [], Cancellation()

    def cancel_if_unwanted(self, now: float) -> None:
        """Cancels the run if no request waits for any of its texts."""
        if self.running and not any(text.request.is_wanted(now) for text in self.running):
            self.cancellation.cancel()

    def requests(self) -> set[PendingRequest]:
        """The requests of all texts that it took and has not done."""
        return {text.request for text in (*self.running, *self.retries)}


class WorkerPool:
    """Keeps `size` threads at work until each has returned.

    Attributes:
        workers: those that are neither dead nor dismissed. Guarded by the lock.

    Args:
        size: workers.
        work: what a worker does; returns when there is no more work, or it was dismissed.
        lock: guards the workers, and whatever `work` shares; the callbacks run under it.
        on_lost: told of a worker that died or was dismissed, before its replacement starts.
        on_failed: told once when the pool gives up, because too many workers hang.
        max_run_seconds: a run that takes longer is taken for hanging.
        max_abandoned: hanging threads to leave behind at one time. Each holds memory and perhaps a core; with more, a
            new process is the better cure.
    """

    def __init__(
        self,
        *,
        size: int,
        work: Callable[[Worker], None],
        lock: Lock,
        on_lost: Callable[[Worker], None],
        on_failed: Callable[[], None],
        max_run_seconds: float,
        max_abandoned: int,
    ) -> None:
        self.workers: list[Worker] = []
        self._size = size
        self._work = work
        self._lock = lock
        self._changed = Condition(lock)
        self._on_lost = on_lost
        self._on_failed = on_failed
        self._max_run_seconds = max_run_seconds
        self._max_abandoned = max_abandoned
        self._abandoned: list[Worker] = []
        self._deaths: deque[float] = deque(maxlen=_MAX_DEATHS)
        self._started = 0
        self._has_failed = False
        self._is_stopped = False
        self._monitor = Thread(target=self._watch, name="polyhead-monitor", daemon=True)

    def start(self) -> None:
        """Starts the workers and the monitor."""
        with self._lock:
            self._start_missing()
        self._monitor.start()

    def is_alive(self) -> bool:
        """Whether every worker is there and none is in one run for too long."""
        now = time.monotonic()
        with self._lock:
            return (
                self._monitor.is_alive()
                and not self._has_failed
                and len(self.workers) == self._size
                and all(self._is_healthy(worker, now) for worker in self.workers)
            )

    def wait_returned(self, timeout: float) -> bool:
        """Waits until every worker has returned; False when that took too long, or will never be. Lock held."""
        if self._monitor.ident is None:
            return True  # never started
        self._changed.wait_for(lambda: self._has_failed or self._have_returned(), timeout)
        return self._have_returned()

    def dismiss_all(self) -> None:
        """Gives up on the workers that have not returned; results they still bring are ignored. Lock held."""
        for worker in self.workers:
            if not worker.has_returned:
                self._dismiss(worker)
        self.workers = [worker for worker in self.workers if worker.has_returned]

    def stop(self, timeout: float) -> bool:
        """Ends the monitor and the workers; False if a dismissed one is still in its run after `timeout` seconds."""
        with self._lock:
            self._is_stopped = True
            self._changed.notify_all()
        for thread in (self._monitor, *(worker.thread for worker in self.workers)):
            if thread.ident is not None:  # it was started
                thread.join()
        deadline = time.monotonic() + timeout
        for worker in self._abandoned:
            worker.thread.join(max(0.0, deadline - time.monotonic()))
        return not any(worker.thread.is_alive() for worker in self._abandoned)

    def _watch(self) -> None:
        tick = min(MONITOR_SECONDS, self._max_run_seconds / 4)
        looked = time.monotonic()
        with self._lock:
            while not self._is_stopped:
                self.replace_lost(looked)
                self._changed.wait(tick)
                before, looked = looked, time.monotonic()
                self._discount(looked - before - tick, looked)

    def _discount(self, late: float, now: float) -> None:
        """Takes the time by which the monitor woke late out of every run: no run hung while the process was stopped.

        Otherwise all workers would seem to hang after Ctrl-Z, a paused container or a frozen machine. Lock held.
        """
        for worker in self.workers:
            if late > 0 and worker.busy_since is not None:
                worker.busy_since = min(now, worker.busy_since + late)

    def replace_lost(self, now: float) -> None:
        """Replaces workers that died or hang; gives up once too many hang. Lock held."""
        self._abandoned = [worker for worker in self._abandoned if worker.thread.is_alive()]
        for worker in list(self.workers):
            if worker.has_died:
                self._deaths.append(now)
                self._lose(worker)
            elif self._is_overdue(worker, now):
                logger.error("%s hangs: over %g s in one run", worker.thread.name, self._max_run_seconds)
                self._dismiss(worker)
                self._lose(worker)
        if len(self._abandoned) > self._max_abandoned and not self._has_failed:
            logger.critical("%d workers hang; giving up, this process has to be replaced", len(self._abandoned))
            self._has_failed = True
            self._on_failed()
            self._changed.notify_all()
        self._start_missing()

    def _is_healthy(self, worker: Worker, now: float) -> bool:
        return worker.thread.is_alive() and not worker.has_died and not self._is_overdue(worker, now)

    def _is_overdue(self, worker: Worker, now: float) -> bool:
        return worker.busy_since is not None and now - worker.busy_since > self._max_run_seconds

    def _dismiss(self, worker: Worker) -> None:
        worker.is_dismissed = True
        self._abandoned.append(worker)

    def _lose(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self._on_lost(worker)

    def _start_missing(self) -> None:
        """Starts workers until all are there. Tried again at the next tick where the system has no thread to give.

        Also then where workers die as soon as they start: starting others at once forever would only use up the
        processor. Lock held.
        """
        if len(self._deaths) == _MAX_DEATHS and time.monotonic() - self._deaths[0] < MONITOR_SECONDS:
            return
        while len(self.workers) < self._size and not (self._has_failed or self._is_stopped):
            worker = Worker(f"polyhead-worker-{self._started}", self._main)
            try:
                worker.thread.start()
            except RuntimeError:
                logger.exception("no thread could be started for a worker")
                return
            self._started += 1
            self.workers.append(worker)

    def _main(self, worker: Worker) -> None:
        has_returned = False
        try:
            self._work(worker)
            has_returned = True
        except BaseException:
            logger.exception("%s died", worker.thread.name)
        finally:
            with self._lock:
                worker.has_returned, worker.has_died = has_returned, not has_returned
                self._changed.notify_all()

    def _have_returned(self) -> bool:
        return len(self.workers) == self._size and all(worker.has_returned for worker in self.workers)
