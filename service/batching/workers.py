"""What the worker threads do: take batches from the queue, run them, settle the requests they belong to.

It does not know who waits, nor how requests come in. The queue and the requests are guarded by one lock, shared with
the batcher; the backend runs outside it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from service.batching.crew import Crew, Member
from service.batching.drain_rate import DrainRate
from service.batching.entries import Entry
from service.batching.hand import Hand
from service.batching.jobs import BatchRecord, JobResult, collate, separate
from service.batching.pending import Pending, deliver
from service.batching.queue import JobQueue
from service.errors import InferenceFailed, NotReady, ServiceError
from service.inference.backend import Backend
from service.machine.cpu import lower_thread_priority

logger = logging.getLogger(__name__)

FAILED = "inference failed; the log has the details"
UNAVAILABLE = "this process no longer takes work; another one may"
WORKER_NICE = 5
RETRY_AFTER = 1.0  # seconds; a replacement, or another replica, is there by then
_ENDING_SECONDS = 1.0  # for a run to end early; ONNX Runtime looks up before every node, and few take longer


class Workers:
    """Threads that pull from a queue, and what becomes of their work when they fail, die or hang.

    Attributes:
        size: threads.
        rate: how fast they work.
        has_failed: whether too many hang; they take nothing more then, for good.

    Args:
        backend: what runs a batch; closed with the workers.
        queue: where the texts come from.
        lock: guards the queue.
        size: threads.
        on_batch: called on the worker's thread after every batch, once its results are on their way.
        max_run_seconds: a run that takes longer is taken for hanging.
        max_abandoned: hanging threads to leave behind before giving up for good.
    """

    def __init__(
        self,
        backend: Backend,
        queue: JobQueue[Pending],
        lock: threading.Lock,
        *,
        size: int,
        on_batch: Callable[[BatchRecord], None] | None,
        max_run_seconds: float,
        max_abandoned: int,
    ) -> None:
        self.size = size
        self.rate = DrainRate()
        self.has_failed = False
        self._backend = backend
        self._queue = queue
        self._lock = lock
        self._has_work = threading.Condition(lock)
        self._on_batch = on_batch
        self._idle = 0
        self._is_closing = False
        self._hands: dict[Member, Hand] = {}
        self._crew = Crew(
            size=size,
            work=self._work,
            lock=lock,
            on_lost=self._recover,
            on_failed=self._give_up,
            max_run_seconds=max_run_seconds,
            max_abandoned=max_abandoned,
        )

    def start(self) -> None:
        """Starts the threads."""
        self._crew.start()

    def is_alive(self) -> bool:
        """Whether every worker lives and makes progress."""
        return not self._is_closing and self._crew.is_alive()

    def wake(self, texts: int) -> None:
        """Tells idle workers that texts came. Lock held."""
        if self._idle:
            self._has_work.notify(texts)

    def end_unwanted_runs(self) -> None:
        """Ends runs of whose texts nobody waits for one. Lock held."""
        now = time.monotonic()
        for hand in self._hands.values():
            hand.end_unwanted_run(now)

    def close(self, timeout: float) -> bool:
        """Lets the workers finish the queue, then closes the backend; False if some of it had to be abandoned.

        Runs that were abandoned are ended and waited for: a thread that comes back from native code to an interpreter
        that has ended takes the process down with SIGABRT.
        """
        with self._lock:
            self._is_closing = True
            self._has_work.notify_all()
            has_finished = self._crew.wait_returned(timeout)
            if not has_finished:
                self._abandon()
                self.end_unwanted_runs()
                self._crew.wait_returned(_ENDING_SECONDS)
                self._crew.dismiss_all()
        if self._crew.stop():
            self._backend.close()
        else:
            logger.warning("a run is still going on: the backend stays open until the process ends")
        return has_finished

    def _work(self, member: Member) -> None:
        lower_thread_priority(WORKER_NICE)  # with every core computing, the event loop would wait for its turn
        hand = Hand()
        with self._lock:
            self._hands[member] = hand
        while self._next(member, hand):
            self._run(member, hand)
        with self._lock:
            self._hands.pop(member, None)

    def _next(self, member: Member, hand: Hand) -> bool:
        """Puts the next batch that anybody wants in the hand, waiting for one; False when there will be none."""
        with self._lock:
            member.busy_since = None
            hand.begin([])
            while not member.dismissed:
                now = time.monotonic()
                batch = [hand.again.popleft()] if hand.again else self._take(now)
                if batch:
                    hand.begin([entry for entry in batch if entry.flow.is_wanted(now)])
                    if hand.running:
                        member.busy_since = now
                        return True
                elif self._is_closing:
                    return False
                else:
                    self._wait()
            return False

    def _take(self, now: float) -> list[Entry[Pending]]:
        """A batch of at most this worker's share of the queue; empty where nothing waits.

        A share is what waits divided by the workers (guided self-scheduling, Polychronopoulos and Kuck 1987): as the
        queue runs dry no worker idles beside another's pile. One batch, not several that are tried one after the other:
        what stays in the queue finds better mates among the texts that come meanwhile.
        """
        return self._queue.take(now, -(-self._queue.tokens // self.size))

    def _wait(self) -> None:
        self._idle += 1
        try:
            self._has_work.wait()
        finally:
            self._idle -= 1

    def _run(self, member: Member, hand: Hand) -> None:
        """Runs one batch. A failure is the batch's alone; the texts of a failed batch are run one by one."""
        entries, jobs = hand.running, hand.jobs
        started = time.monotonic()
        try:
            batch = collate(jobs, hand.cancellation)
            output = self._backend.run(batch)
            seconds = time.monotonic() - started
            waits = [started - entry.flow.arrived for entry in entries]
            results = separate(jobs, output, queue_seconds=waits, inference_seconds=seconds)
        except Exception as error:  # the backend may raise anything; whatever it is, the worker goes on
            if hand.cancellation.is_cancelled:
                return  # nobody waits for any of these texts
            self._fail(member, entries, error)
            return
        tokens = sum(entry.length for entry in entries)
        self._settle(member, entries, results, tokens, seconds)
        self._report(BatchRecord(len(jobs), tokens, batch.input_ids.size, seconds))

    def _settle(
        self, member: Member, entries: list[Entry[Pending]], results: list[JobResult], tokens: int, seconds: float
    ) -> None:
        with self._lock:
            if member.dismissed:
                return
            self.rate.add(tokens, seconds)
            pairs = zip(entries, results, strict=True)
            completed = [entry.flow for entry, result in pairs if entry.flow.complete(entry.index, result)]
        deliver(completed)

    def _fail(self, member: Member, entries: list[Entry[Pending]], error: Exception) -> None:
        longest = max(entry.length for entry in entries)
        logger.error("a batch of %d texts, %d tokens the longest, failed", len(entries), longest, exc_info=error)
        with self._lock:
            if member.dismissed:
                return
            if len(entries) > 1:
                self._hands[member].again.extend(entries)
                return
            self._fail_requests({entry.flow for entry in entries}, InferenceFailed, FAILED, error)

    def _report(self, record: BatchRecord) -> None:
        if self._on_batch is None:
            return
        try:
            self._on_batch(record)
        except Exception:  # what counts batches must not end the worker that runs them
            logger.exception("the batch callback failed")

    def _recover(self, member: Member) -> None:
        """Fails what a lost worker was running, and gives the rest of its hand to the others. Lock held."""
        hand = self._hands.pop(member, None)
        if hand is None:
            return
        self._fail_requests({entry.flow for entry in hand.running}, InferenceFailed, FAILED)
        now = time.monotonic()
        entries = hand.wanted_again(now)
        self._queue.put_back(entries, now)
        self._has_work.notify(len(entries))
        if self.has_failed:  # nobody is hired any more, and the worker lost may have been the last
            self._give_up()

    def _give_up(self) -> None:
        """Fails what is queued, for good; workers that still answer finish what they have in hand. Lock held."""
        self.has_failed = True
        self._fail_requests(self._queue.flows(), NotReady, UNAVAILABLE)

    def _abandon(self) -> None:
        """Fails what is queued and what is in the workers' hands. Lock held."""
        in_hand = {entry.flow for hand in self._hands.values() for entry in hand.entries()}
        self._fail_requests([*in_hand, *self._queue.flows()], NotReady, UNAVAILABLE)

    def _fail_requests(
        self, requests: Iterable[Pending], kind: type[ServiceError], message: str, cause: Exception | None = None
    ) -> None:
        """Fails requests at once, dropping what they have in the queue. Lock held."""
        failed = []
        for pending in requests:
            error = kind(message, retry_after=RETRY_AFTER if kind is NotReady else None)
            error.__cause__ = cause
            if pending.fail(error):
                self._queue.remove(pending)
                failed.append(pending)
        deliver(failed)
