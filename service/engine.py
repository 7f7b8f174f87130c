"""The encoder as a Python object: texts in, arrays out, without HTTP.

    from polyhead import Engine

    with Engine.load("artifacts/all-MiniLM-L6-v2") as engine:
        encoded = engine.encode(["The cat sat on the mat."], attention={"layers": "all"})
        encoded.embeddings          # float32 [1, 384]
        encoded.attention[0]        # {"tokens": [...], "weights": [one array [heads, queries, keys] a layer], ...}

The same validation, scheduling and arithmetic as `POST /encode`, so the same bits; but no limit on how much one call
may ask for: long lists go through the queue in portions.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from model.artifact import Artifact
from service.answers.answer import build_answer
from service.answers.comparison import Explained, compare
from service.answers.encoded import Encoded, empty_result
from service.batching.batcher import Batcher
from service.batching.jobs import JobResult
from service.batching.token_semaphore import TokenSemaphore
from service.errors import NotReady
from service.requests.calls import read_call, read_explain_call
from service.requests.explain_plan import ExplainPlan, plan_explaining
from service.requests.plan import EncodePlan, plan_encoding
from service.runner import Runner
from service.runtime import Runtime
from service.tokenization.inputs import InputNames, refuse_empty
from service.tokenization.tokenized import TokenizedInput
from service.tokenization.tokenizer import Tokenizer

PORTION_TEXTS = 256  # tokenised at once, while the workers run the portion before
QUEUED_TOKENS = 32_768  # of one engine's calls, in the queue at once: enough to find texts of equal length among
CLOSE_SECONDS = 30.0

Progress = Callable[[int], object]
T = TypeVar("T")


class Engine(Runner):
    """A loaded artifact. `encode` may be called from any number of threads at once, but not on an event loop."""

    def __init__(self, artifact: Artifact, tokenizer: Tokenizer, batcher: Batcher, runtime: Runtime) -> None:
        super().__init__(artifact, tokenizer, batcher, runtime)
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._process = os.getpid()
        self._queued_tokens = min(QUEUED_TOKENS, batcher.max_queue_tokens)
        self._space = TokenSemaphore(self._queued_tokens)
        atexit.register(self.close, 0.0)  # where nobody closed it, as after Ctrl-C: see `BatchExecutor.close`

    def encode(
        self,
        inputs: str | Iterable[str] | Iterable[int] | Iterable[Sequence[int]] | None = None,
        *,
        pairs: Iterable[Sequence[str]] | Iterable[Sequence[Sequence[int]]] | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Encoded:
        """Encodes texts, token ids, or pairs of either.

        Args:
            inputs: a text, texts, token ids, or lists of token ids; any number. Lists, tuples, generators and arrays
                of NumPy's hold them, here and in the options.
            pairs: in place of inputs, for models that read two texts together: two texts, or two lists of token ids,
                each.
            progress: called now and then with how many more inputs are done, on another thread.
            **options: `POST /encode`'s: normalize, truncate, dimensions, output, attention, head_mask, prompt_name,
                prompt, raw_scores, pair_truncation.

        Raises:
            ServiceError: the options or inputs are not what the model takes (`Invalid`, `TooLarge`), it failed
                (`InferenceFailed`), or the engine is closed or of the process that this one was forked from
                (`NotReady`).
        """
        request, given = read_call(inputs, pairs, options)
        plan = plan_encoding(request, given, self.manifest)
        return self._result(lambda: self._encode(plan, progress or _ignore))

    def explain(self, a: str, b: str, **options: Any) -> Explained:
        """Says why two texts are similar: what each pair of their tokens adds to it.

        Args:
            a: a text.
            b: another.
            **options: `POST /explain`'s: similarity, dimensions, truncate, prompt_name, prompt, head_mask.

        Raises:
            ServiceError: as of `encode`; `WrongTask` where the model gives no vector of a text.
        """
        plan = plan_explaining(read_explain_call(a, b, options), self.manifest)
        return self._result(lambda: self._explain(plan))

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """As `Runner.close`; ends the engine's own thread too. A call not wholly queued yet fails with `NotReady`.

        In a forked process it does nothing: the threads, and whatever they hold, are the parent's.
        """
        if os.getpid() != self._process:
            return True
        atexit.unregister(self.close)
        with self._starting:
            self._is_closed = True
        done = super().close(timeout)
        with self._starting:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(CLOSE_SECONDS)  # it is a caller's `progress` that may take for ever
        return done

    def __enter__(self) -> Self:
        """The engine itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes it."""
        self.close()

    def _result(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a call returns, once it has."""
        running = self._start(call)
        try:
            return running.result()
        except CancelledError:
            raise NotReady("the engine was closed") from None
        except BaseException:  # Ctrl-C: nobody waits for the rest
            running.cancel()
            raise

    def _start(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Starts a call on the event loop where calls wait, on a thread of its own; the service has its own loop."""
        if os.getpid() != self._process:  # a call would wait forever for threads that stayed behind
            raise NotReady("the engine was loaded before a fork, and its threads are the parent's: load it here")
        with self._starting:  # `close` stops the loop after what was started before
            if self._is_closed:
                raise NotReady("the engine is closed")
            if self._loop is None:
                self._loop, self._thread = _start_loop()
            return asyncio.run_coroutine_threadsafe(call(), self._loop)

    async def _explain(self, plan: ExplainPlan) -> Explained:
        texts = await self.tokenize(plan.inputs, truncate=True)
        plan.check_texts(texts, self.tokenizer.max_sequence_length)
        results = await self.run(texts, **plan.run_options)
        return await asyncio.to_thread(compare, plan, texts, results, self)

    async def _encode(self, plan: EncodePlan, progress: Progress) -> Encoded:
        encoded, start = empty_result(plan, self.manifest), 0
        try:
            async with asyncio.TaskGroup() as group:
                async for portion in self._portions(plan):
                    for run, tokens in _cut(portion, self._queued_tokens):
                        await self._space.acquire(tokens)
                        running = group.create_task(self._run(plan, run, encoded, start, progress))
                        running.add_done_callback(partial(self._release, tokens))
                        start += len(run)
        except BaseExceptionGroup as failed:
            error = failed.exceptions[0]
            raise error from error.__cause__  # and not from the group
        return encoded

    def _release(self, tokens: int, _run: asyncio.Task[None]) -> None:
        self._space.release(tokens)

    async def _portions(self, plan: EncodePlan) -> AsyncIterator[list[TokenizedInput]]:
        """The inputs as tokens, a portion at a time."""
        for start in range(0, len(plan.inputs), PORTION_TEXTS):
            names = InputNames(listed="pairs" if plan.inputs.is_paired else "inputs", start=start)
            portion = await self.tokenize(
                plan.inputs[start : start + PORTION_TEXTS],
                truncate=plan.request.truncate,
                pair_truncation=plan.request.pair_truncation,
                names=names,
                ids_only=plan.selection is None,
            )
            refuse_empty(portion, names=names)
            yield portion

    async def _run(
        self, plan: EncodePlan, inputs: list[TokenizedInput], encoded: Encoded, start: int, progress: Progress
    ) -> None:
        """Runs a part of the inputs and puts it in its place at once: results take several times what is kept."""
        results = await self.run(inputs, **plan.run_options)
        await asyncio.to_thread(self._put, plan, inputs, results, encoded, slice(start, start + len(inputs)))
        progress(len(inputs))

    def _put(
        self, plan: EncodePlan, inputs: list[TokenizedInput], results: list[JobResult], encoded: Encoded, place: slice
    ) -> None:
        answer = build_answer(plan, inputs, results, plan.plan_attention(inputs, self.tokenizer), self)
        encoded.values[place] = answer[encoded.kind]
        encoded.items[place] = answer["items"]
        if encoded.attention is not None:
            encoded.attention[place] = answer["attention"]


def _cut(portion: list[TokenizedInput], most: int) -> Iterator[tuple[list[TokenizedInput], int]]:
    """A portion as runs of at most `most` tokens, each with how many it has; a longer text is a run alone."""
    run: list[TokenizedInput] = []
    tokens = 0
    for item in portion:
        length = len(item.input_ids)
        if run and tokens + length > most:
            yield run, tokens
            run, tokens = [], 0
        run.append(item)
        tokens += length
    if run:
        yield run, tokens


def _start_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """An event loop that runs on a thread of its own.

    Raises:
        RuntimeError: the system gives no thread.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run_loop, args=(loop,), name="engine", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        loop.close()
        raise
    return loop, thread


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    with ThreadPoolExecutor(thread_name_prefix="engine") as threads:  # the loop would need one more to end its own
        loop.set_default_executor(threads)
        loop.run_forever()
        if left := asyncio.all_tasks(loop):  # none is cancelled: one may hold its results, the others find all closed
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()


def _ignore(_count: int) -> None:
    pass
