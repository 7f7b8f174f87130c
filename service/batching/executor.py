"""What the worker threads do: take batches from the queue, run them on their share of the cores, settle the requests.

It does not know who waits, nor how requests come in. The queue and the requests are guarded by one lock, shared with
the batcher; the backend runs outside it. Python cannot stop a thread: while one is in a run for too long the workers
count as not alive, and a new process is the cure.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue

from service.batching.admission import CLOSED, DrainRate
from service.batching.jobs import Job, PendingRequest, collate, deliver, separate
from service.batching.queue import JobQueue, QueuedText
from service.errors import InferenceFailed, NotReady, ServiceError
from service.inference.backend import Backend, Cancellation
from service.machine import lower_thread_priority
from service.observability.stages import BatchRecord

logger = logging.getLogger(__name__)

FAILED = "inference failed; the log has the details"
WORKER_NICE = 5
_MIN_SHARE = 64  # tokens; MiniLM-L6 takes 2.1 (fp32) or 2.5 times (int8) as long for each of 8 tokens run alone
_CANCEL_SECONDS = 1.0  # for a run to end early; ONNX Runtime looks up before every node, and few take longer


class Worker:
    """One worker thread. All but `thread` is guarded by the executor's lock; times are of `time.monotonic`."""

    __slots__ = ("busy_since", "cancellation", "free_since", "jobs", "retries", "running", "thread")

    def __init__(self, name: str, main: Callable[["Worker"], None]) -> None:
        self.thread = threading.Thread(target=main, args=(self,), name=name, daemon=True)
        self.busy_since: float | None = None  # None between runs
        self.free_since = time.monotonic()  # woken, or done with a run: what its next texts cost begins here
        self.running: list[QueuedText[PendingRequest]] = []
        self.jobs: list[Job] = []  # of `running`: a request may be over before its run is, and forgets its jobs then
        self.retries: deque[QueuedText[PendingRequest]] = deque()  # of a batch that failed, to be run one by one
        self.cancellation = Cancellation()  # of the current run


class BatchExecutor:
    """Runs batches from a queue on worker threads, and settles requests where runs fail.

    Attributes:
        cores: shared with other models of the process, if there are any; entered around each run.

    Args:
        backend: closed with the executor.
        queue: guarded by `lock`.
        on_batch, max_run_seconds: as of `Batcher`.
    """

    def __init__(
        self,
        backend: Backend,
        queue: JobQueue[PendingRequest],
        lock: threading.Lock,
        *,
        size: int,
        on_batch: Callable[[BatchRecord], object],
        max_run_seconds: float,
    ) -> None:
        self.size = size
        self.rate = DrainRate()
        self.cores: AbstractContextManager[object] = nullcontext()
        self.workers = [Worker(f"polyhead-worker-{index}", self._work) for index in range(size)]
        self._backend = backend
        self._queue = queue
        self._lock = lock
        self._wake_ups: SimpleQueue[None] = SimpleQueue()  # one for each idle worker that is to look at the queue again
        self._on_batch = on_batch
        self._max_run_seconds = max_run_seconds
        self._idle = 0
        self._is_closing = False

    def start(self) -> None:
        """Starts the threads; RuntimeError where the system gives none."""
        for worker in self.workers:
            worker.thread.start()

    def is_alive(self) -> bool:
        """Whether every worker lives and none is in one run for too long."""
        begun = time.monotonic() - self._max_run_seconds
        with self._lock:
            return not self._is_closing and all(
                worker.thread.is_alive() and (worker.busy_since is None or worker.busy_since >= begun)
                for worker in self.workers
            )

    def wake(self, texts: int) -> None:
        """Tells idle workers that texts came. Lock held."""
        for _ in range(min(texts, self._idle)):
            self._idle -= 1
            self._wake_ups.put(None)

    def cancel_unwanted_runs(self) -> None:
        """Cancels runs whose requests have all ended. Lock held."""
        now = time.monotonic()
        for worker in self.workers:
            if worker.running and not any(text.request.is_wanted(now) for text in worker.running):
                worker.cancellation.cancel()

    def close(self, timeout: float) -> bool:
        """Lets the workers finish the queue, then closes the backend; False if some of it had to be abandoned.

        Runs that were abandoned are cancelled and waited for: a thread that comes back from native code to an
        interpreter that has ended ends the process with SIGABRT.
        """
        with self._lock:
            self._is_closing = True
            self.wake(self._idle)
        has_finished = self._join(timeout)
        if not has_finished:
            with self._lock:
                self._abandon()
                self.cancel_unwanted_runs()
        if has_finished or self._join(_CANCEL_SECONDS):
            self._backend.close()
        else:
            logger.warning("a run is still going on: the backend stays open until the process ends")
        return has_finished

    def _join(self, timeout: float) -> bool:
        """Waits for the workers' ends; whether all came in time."""
        deadline = time.monotonic() + timeout
        for worker in self.workers:
            worker.thread.join(max(0.0, deadline - time.monotonic()))
        return not any(worker.thread.is_alive() for worker in self.workers)

    def _work(self, worker: Worker) -> None:
        lower_thread_priority(WORKER_NICE)  # with every core computing, the event loop would wait for its turn
        while self._begin_next(worker):
            with self.cores:
                self._run(worker)

    def _begin_next(self, worker: Worker) -> bool:
        """Gives a worker the next texts that anybody wants, waiting for some; False when there will be none."""
        with self._lock:
            worker.busy_since, worker.running, worker.jobs = None, [], []
            while True:
                now = time.monotonic()
                texts = [worker.retries.popleft()] if worker.retries else self._queue.take(self._share())
                if wanted := [text for text in texts if text.request.is_wanted(now)]:
                    worker.running, worker.jobs = wanted, [text.request.jobs[text.index] for text in wanted]
                    worker.busy_since, worker.cancellation = now, Cancellation()
                    return True
                if not texts:
                    if self._is_closing:
                        return False
                    self._wait()
                    worker.free_since = time.monotonic()

    def _share(self) -> int:
        """The most tokens that a worker takes at once: the waiting tokens divided by the workers.

        So no worker idles beside another's pile as the queue runs dry (guided self-scheduling, Polychronopoulos and
        Kuck 1987). Many workers would cut a small pile into runs of one text, which cost more a token: a share is at
        least 64 tokens, or half of the pile where that is less, so that a second worker has something to do.
        """
        tokens = self._queue.tokens
        return max(-(-tokens // self.size), min(_MIN_SHARE, -(-tokens // 2)))

    def _wait(self) -> None:
        self._idle += 1  # a `threading.Condition` without its Python, which costs a request more
        self._lock.release()
        try:
            self._wake_ups.get()
        finally:
            self._lock.acquire()

    def _run(self, worker: Worker) -> None:
        """Runs one batch. A failure is the batch's alone; the texts of a failed batch are run one by one."""
        texts, jobs = worker.running, worker.jobs
        started = time.monotonic()
        try:
            batch = collate(jobs, worker.cancellation)
            output = self._backend.run(batch)
            seconds = time.monotonic() - started
            waits = [started - text.request.arrived for text in texts]
            results = separate(jobs, output, queue_seconds=waits, inference_seconds=seconds)
        except BaseException as error:  # the backend may raise anything; whatever it is, the worker goes on
            worker.free_since = time.monotonic()
            self._on_batch(BatchRecord(0, 0, 0, time.monotonic() - started))
            if worker.cancellation.is_cancelled:
                return  # no request waits for any of these texts
            self._fail(worker, texts, error)
            return
        tokens, now = sum(text.length for text in texts), time.monotonic()
        with self._lock:
            self.rate.add(tokens, now - worker.free_since)  # with what it waited for a core that another model used
            worker.free_since = now
            pairs = zip(texts, results, strict=True)
            completed = [text.request for text, result in pairs if text.request.complete(text.index, result)]
        deliver(completed)
        self._on_batch(BatchRecord(len(jobs), tokens, batch.input_ids.size, seconds))

    def _fail(self, worker: Worker, texts: list[QueuedText[PendingRequest]], error: BaseException) -> None:
        longest = max(text.length for text in texts)
        logger.error("a batch of %d texts, %d tokens the longest, failed", len(texts), longest, exc_info=error)
        with self._lock:
            if len(texts) > 1:
                worker.retries.extend(texts)
                return
            self._fail_request(texts[0].request, InferenceFailed(FAILED), error)

    def _abandon(self) -> None:
        """Fails the queued requests and those that the workers have taken. Lock held."""
        taken = {text.request for worker in self.workers for text in (*worker.running, *worker.retries)}
        for request in (*taken, *self._queue.requests()):
            self._fail_request(request, NotReady(CLOSED))

    def _fail_request(self, request: PendingRequest, error: ServiceError, cause: BaseException | None = None) -> None:
        """Fails a request at once, dropping what it has in the queue. Lock held."""
        error.__cause__ = cause
        if request.fail(error):
            self._queue.remove(request)
            deliver([request])


KEPT_SECONDS = 0.2  # after a run, that its core is left to its model: the next request of a steady client is there
LOOK_SECONDS = 0.05  # between two looks of a worker that waits


class CoreShares:
    """Cores shared between the models of one process, so that a flood on one does not slow the others.

    The kernel alone would share them by thread: a flooded model has a thread running on every core, and a request for
    another one would run at half the speed. So a model runs on the cores that the others leave, and never on fewer than
    its fair share; a core that another model has used within a moment is left to it.
    """

    def __init__(self, cores: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.cores = max(1, cores)
        self.clock = clock
        self.changed = threading.Condition()
        self.members: list[CoreShare] = []

    def join(self) -> "CoreShare":
        """The share of one more model."""
        with self.changed:
            member = CoreShare(self)
            self.members.append(member)
        return member

    def leave(self, member: "CoreShare") -> None:
        """Forgets a model that is gone."""
        with self.changed:
            self.members.remove(member)
            self.changed.notify_all()


class CoreShare:
    """One model's part, entered around each run."""

    def __init__(self, shares: CoreShares) -> None:
        self._shares = shares
        self._running = self._used = 0
        self._kept_until = 0.0

    def __enter__(self) -> None:
        """Waits until the model may run on one core more."""
        shares = self._shares
        with shares.changed:
            while self._running >= self.most(shares.clock()):
                shares.changed.wait(LOOK_SECONDS)
            self._running += 1
            self._keep()

    def __exit__(self, *_: object) -> None:
        """That run has ended."""
        with self._shares.changed:
            self._keep()
            self._running -= 1
            self._shares.changed.notify_all()

    def most(self, now: float) -> int:
        """Cores that it may run on at present."""
        cores, others = self._shares.cores, [other for other in self._shares.members if other is not self]
        used = [wanted for other in others if (wanted := other.wanted(now))]
        fair = max(1, cores // (1 + len(used)))
        return max(fair, cores - sum(min(wanted, fair) for wanted in used))

    def wanted(self, now: float) -> int:
        """Cores that it uses, or used a moment ago."""
        return max(self._running, self._used if now < self._kept_until else 0)

    def _keep(self) -> None:
        now = self._shares.clock()
        self._used = self.wanted(now)
        self._kept_until = now + KEPT_SECONDS
