"""From requests to results: one queue, and worker threads that pull from it themselves.

It knows neither HTTP nor what a backend is made of. The event loop only puts requests into the queue; a worker that
becomes free forms its next batch, runs it, and wakes the loop for the requests whose last text is done. There is no
dispatcher thread and no polling. Queue, requests and workers are guarded by one lock; the backend runs outside it.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue

from service.batching.admission import CLOSED, DrainRate, refuse
from service.batching.jobs import Job, JobResult, PendingRequest, collate, deliver, separate
from service.batching.queue import BatchLimits, JobQueue, QueuedText
from service.errors import DeadlineExceeded, InferenceFailed, NotReady, Overloaded, ServiceError, TooLarge
from service.inference.backend import Backend, Cancellation
from service.machine import lower_thread_priority
from service.observability.stages import BatchRecord

logger = logging.getLogger(__name__)

FAILED = "inference failed; the log has the details"
WORKER_NICE = 5
_MAX_PAIRS = 2**19  # attention weights of a batch a head, over all wanted layers: 25 MB at 12 heads
_FULL_PADDING = 0.1  # from a full queue 3 % more texts a second than with 0.25, from an emptier one 3 % fewer
_MIN_SHARE = 64  # tokens; MiniLM-L6 takes 2.1 (fp32) or 2.5 times (int8) as long for each of 8 tokens run alone
_CANCEL_SECONDS = 1.0  # for a run to end early; ONNX Runtime looks up before every node, and few take longer


class Worker:
    """One worker thread. All but `thread` is guarded by the batcher's lock; times are of `time.monotonic`."""

    __slots__ = ("busy_since", "cancellation", "free_since", "jobs", "retries", "running", "thread")

    def __init__(self, name: str, main: Callable[["Worker"], None]) -> None:
        self.thread = threading.Thread(target=main, args=(self,), name=name, daemon=True)
        self.busy_since: float | None = None  # None between runs
        self.free_since = time.monotonic()  # woken, or done with a run: what its next texts cost begins here
        self.running: list[QueuedText[PendingRequest]] = []
        self.jobs: list[Job] = []  # of `running`: a request may be over before its run is, and forgets its jobs then
        self.retries: deque[QueuedText[PendingRequest]] = deque()  # of a batch that failed, to be run one by one
        self.cancellation = Cancellation()  # of the current run


class Batcher:
    """Runs texts on a backend, in batches, fairly between requests.

    `submit` is called on an event loop; everything else may be called from any thread.

    Attributes:
        max_queue_tokens: tokens that may wait, of all requests together, and so the most one request may have.
        rate: how fast the workers drain the queue.
        workers: the threads. Python cannot stop one: while one is in a run for too long the batcher is not alive, and a
            new process is the cure.
        cores: shared with other models of the process, if there are any; entered around each run.

    Args:
        backend: closed with the batcher.
        max_batch_tokens: padded tokens of a batch; a longer text runs alone.
        max_queue_delay: seconds a request may have to wait, beside 16 times its own run; one that would is refused.
        on_batch: called on the worker's thread after every batch, once its results are on their way.
        max_padding: share of a batch's padded tokens that may be padding. Only attention computes padding,
            the rest of the network runs on real tokens. Without any, few texts would find others to run with.
        max_run_seconds: a run that takes longer is taken for hanging.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        workers: int,
        max_batch_tokens: int,
        max_queue_tokens: int,
        max_queue_delay: float = math.inf,
        on_batch: Callable[[BatchRecord], object] = lambda _: None,
        max_padding: float = 0.25,
        max_run_seconds: float = 60.0,
    ) -> None:
        limits = BatchLimits(
            max_tokens=max_batch_tokens, max_padding=max_padding, max_pairs=_MAX_PAIRS, max_full_padding=_FULL_PADDING
        )
        self.max_queue_tokens = max_queue_tokens
        self.rate = DrainRate(workers, max_queue_delay)
        self.workers = [Worker(f"polyhead-worker-{index}", self._work) for index in range(workers)]
        self.cores: AbstractContextManager[object] = nullcontext()
        self._backend = backend
        self._on_batch = on_batch
        self._max_run_seconds = max_run_seconds
        self._lock = threading.Lock()
        self._queue: JobQueue[PendingRequest] = JobQueue(limits)
        self._is_open = False
        self._idle = 0
        self._wake_ups: SimpleQueue[None] = SimpleQueue()  # one for each idle worker that is to look at the queue again

    def start(self) -> None:
        """Starts the workers, once; it is closed, and RuntimeError raised, if the system has too few threads left."""
        self._is_open = True
        try:
            for worker in self.workers:
                worker.thread.start()
        except RuntimeError:  # threads that began would wait forever, and hold the backend
            self.workers = [worker for worker in self.workers if worker.thread.is_alive()]
            self.close(_CANCEL_SECONDS)
            raise

    async def submit(self, jobs: Sequence[Job], *, deadline: float | None = None) -> list[JobResult]:
        """Runs the texts of one request and returns their results in the same order.

        Once the caller stops waiting or the deadline passes, what is left of the request leaves the queue at once. A
        run is cancelled once no request waits for any of its texts. Otherwise it goes on, and the results of this
        request are dropped.

        Args:
            jobs: the texts.
            deadline: `time.monotonic()` value after which the answer is worth nothing.

        Raises:
            TooLarge: the request alone is larger than the whole queue. Not `Overloaded`: trying again cannot help.
            Overloaded: the queue is full; `retry_after` is when it will have room, by the measured drain rate.
            DeadlineExceeded: the deadline passed, before or while the request waited.
            InferenceFailed: the backend failed on a text of the request, when run alone.
            NotReady: not started, closed, or without workers.
        """
        if not jobs:
            return []
        request = PendingRequest(jobs, math.inf if deadline is None else deadline)
        self._enqueue(request)
        timer = None
        if deadline is not None:
            timer = request.loop.call_later(deadline - time.monotonic(), self._expire, request)
        try:
            await request.future
            results: list[JobResult] = request.outcome()
            return results
        finally:
            if timer is not None:
                timer.cancel()
            if not request.is_settled:
                self._withdraw(request)
            request.forget()

    def early_refusal(self, tokens: int, others: int = 0, refused: int = 0) -> Overloaded | None:
        """Why the queue would refuse a request that is not read yet; None if it would not.

        Under overload most requests are refused. Reading, parsing and tokenising them would slow the others, and so
        would raising this.

        Args:
            tokens: that it has, about.
            others: requests like it that are on their way to the queue.
            refused: tokens of the clients that were refused and come again. Told to come at the workers' own rate they
                would leave them idle by chance; they are told half the time.
        """
        with self._lock:
            ahead = self._queue.ahead_of(tokens) + others * tokens
            return self.rate.refusal(tokens, ahead=ahead, again=refused // 2)

    @property
    def queued_texts(self) -> int:
        """Texts that wait for a worker."""
        return self._queue.texts

    @property
    def queued_tokens(self) -> int:
        """Their tokens."""
        return self._queue.tokens

    @property
    def oldest_age(self) -> float:
        """Seconds that the oldest waiting request has been there; 0 for an empty queue."""
        with self._lock:
            return self._queue.oldest_age(time.monotonic())

    def is_alive(self) -> bool:
        """Whether every worker thread lives and none has been in one run for too long."""
        begun = time.monotonic() - self._max_run_seconds
        with self._lock:
            return self._is_open and all(
                worker.thread.is_alive() and (worker.busy_since is None or worker.busy_since >= begun)
                for worker in self.workers
            )

    def close(self, timeout: float) -> bool:
        """Takes nothing more, finishes the queued texts, joins the workers and closes the backend. Blocks.

        Runs that were abandoned are cancelled and waited for: a thread that comes back from native code to an
        interpreter that has ended ends the process with SIGABRT.

        Returns:
            False if work was left after `timeout` seconds; its requests have failed with `NotReady`. True the second
            time, when there is nothing to do.
        """
        with self._lock:
            was_open, self._is_open = self._is_open, False
            self._wake(self._idle)
        if not was_open:
            return True
        has_finished = self._join(timeout)
        if not has_finished:
            with self._lock:
                self._abandon()
                self._cancel_unwanted_runs()
        if has_finished or self._join(_CANCEL_SECONDS):
            self._backend.close()
        else:
            logger.warning("a run is still going on: the backend stays open until the process ends")
        return has_finished

    def _enqueue(self, request: PendingRequest) -> None:
        """Queues a request, or refuses it before anything of it is queued."""
        texts = [
            QueuedText(request, index, len(job.input_ids), job.attention_layers)
            for index, job in enumerate(request.parts)
        ]
        tokens = sum(text.length for text in texts)
        now = time.monotonic()
        with self._lock:
            self._check(request, tokens, now)
            self._queue.add(request, texts, now)
            self._wake(len(texts))

    def _check(self, request: PendingRequest, tokens: int, now: float) -> None:
        """Refuses what `submit` says. Lock held."""
        if not self._is_open:
            raise NotReady(CLOSED)
        if not request.is_wanted(now):
            raise DeadlineExceeded()
        if tokens > self.max_queue_tokens:
            limit = self.max_queue_tokens
            raise TooLarge(f"the request has {tokens} tokens, the queue takes {limit} at most: send fewer texts")
        if (excess := self._queue.tokens + tokens - self.max_queue_tokens) > 0:
            retry_after = self.rate.retry_after(excess)
            raise Overloaded("too many tokens are waiting; try again later", retry_after=retry_after)
        refuse(self.rate.refusal(tokens, ahead=self._queue.ahead_of(tokens), time_left=request.deadline - now))

    def _expire(self, request: PendingRequest) -> None:
        if self._withdraw(request, DeadlineExceeded()):
            request.resolve()

    def _withdraw(self, request: PendingRequest, error: ServiceError | None = None) -> bool:
        """Ends a request that is not settled yet; returns whether it was not."""
        with self._lock:
            was_waiting = request.settle(error)
            if was_waiting:
                self._queue.remove(request)
                self._cancel_unwanted_runs()
        return was_waiting

    def _wake(self, texts: int) -> None:
        """Tells idle workers that texts came. Lock held."""
        for _ in range(min(texts, self._idle)):
            self._idle -= 1
            self._wake_ups.put(None)

    def _cancel_unwanted_runs(self) -> None:
        """Cancels runs whose requests have all ended. Lock held."""
        now = time.monotonic()
        for worker in self.workers:
            if worker.running and not any(text.request.is_wanted(now) for text in worker.running):
                worker.cancellation.cancel()

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
                    worker.running, worker.jobs = wanted, [text.request.parts[text.index] for text in wanted]
                    worker.busy_since, worker.cancellation = now, Cancellation()
                    return True
                if not texts:
                    if not self._is_open:
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
        return max(-(-tokens // self.rate.workers), min(_MIN_SHARE, -(-tokens // 2)))

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
            for request in completed:
                request.settle()
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
        if request.settle(error):
            self._queue.remove(request)
            deliver([request])
