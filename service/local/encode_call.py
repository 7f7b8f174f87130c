"""One call that encodes any number of inputs: tokenised a portion at a time, run as the queue has space."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from service.answers.answer import build_answer
from service.answers.encoded import Encoded, empty_result
from service.answers.quantize import is_quantized, refuse_format
from service.batching.jobs import JobResult
from service.batching.token_semaphore import TokenSemaphore
from service.inference.backend import Int64Array
from service.inference.decomposer import TokenParts
from service.requests.plan import EncodePlan
from service.runner import Runner
from service.tokenization.inputs import InputNames, refuse_empty
from service.tokenization.tokenized import TokenizedInput
from service.tokenization.windows import all_windows

PORTION_TEXTS = 256  # tokenised at once, while the workers run the portion before
QUEUED_TOKENS = 32_768  # of one engine's calls, in the queue at once: enough to find texts of equal length among
NO_IDS = np.empty(0, dtype=np.int64)

Progress = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Queueing:
    """What runs the calls of one engine, and how much of them may be in the queue.

    Attributes:
        runner: tokenises and runs.
        space: shared by all calls.
        tokens: that the space holds.
    """

    runner: Runner
    space: TokenSemaphore
    tokens: int

    @classmethod
    def of(cls, runner: Runner, max_queue_tokens: int) -> "Queueing":
        """Space for the calls of one engine."""
        tokens = min(QUEUED_TOKENS, max_queue_tokens)
        return cls(runner, TokenSemaphore(tokens), tokens)


class EncodeCall:
    """One call.

    Args:
        queueing: of the engine.
        plan: what is asked for, of all inputs.
        names: what the caller calls them.
        progress: called with how many more are done; None for nobody.
        most_tokens: of each text of a row; what is more is cut off.
        keeps_ids: whether `input_ids` are wanted.

    Attributes:
        input_ids: of each input, once it is done; empty where they are not wanted.
    """

    def __init__(
        self,
        queueing: Queueing,
        plan: EncodePlan,
        names: InputNames,
        progress: Progress | None = None,
        *,
        most_tokens: Sequence[int | None] | None = None,
        keeps_ids: bool = False,
    ) -> None:
        self._queueing = queueing
        self._runner = queueing.runner
        self._plan = plan
        self._names = names
        self._progress = progress
        self._most_tokens = most_tokens
        self._encoded = empty_result(plan, self._runner.manifest)
        self._keeps_ids = keeps_ids
        self.input_ids: list[Int64Array] = [NO_IDS] * len(plan.inputs) if keeps_ids else []

    async def run(self) -> Encoded:
        """Encodes all inputs.

        Raises:
            ServiceError: whatever keeps one from being encoded.
        """
        if is_quantized(self._plan.request.encoding_format):
            refuse_format(self._plan, self._runner.manifest)
        start = 0
        try:
            async with asyncio.TaskGroup() as group:
                async for portion in self._portions():
                    for part, tokens in cut(portion, self._queueing.tokens):
                        await self._queueing.space.acquire(tokens)
                        running = group.create_task(self._run(part, start))
                        running.add_done_callback(partial(self._release, tokens))
                        start += len(part)
        except BaseExceptionGroup as failed:
            error = failed.exceptions[0]
            raise error from error.__cause__  # and not from the group
        return self._encoded

    def _release(self, tokens: int, _run: asyncio.Task[None]) -> None:
        self._queueing.space.release(tokens)

    async def _portions(self) -> AsyncIterator[list[TokenizedInput]]:
        """The inputs as tokens, a portion at a time."""
        plan = self._plan
        for start in range(0, len(plan.inputs), PORTION_TEXTS):
            names = self._names.after(start)
            portion = await self._runner.tokenize(
                plan.inputs[start : start + PORTION_TEXTS],
                truncate=plan.request.truncate,
                pair_truncation=plan.request.pair_truncation,
                names=names,
                ids_only=plan.needs_only_ids,
                most_tokens=self._most_tokens,
                in_windows=plan.request.long_texts is not None,
            )
            refuse_empty(portion, names=names)
            yield portion

    async def _run(self, inputs: list[TokenizedInput], start: int) -> None:
        """Runs a part of the inputs and puts it in its place at once: results take several times what is kept."""
        place = slice(start, start + len(inputs))
        rows = inputs if self._plan.request.long_texts is None else all_windows(inputs)
        results: list[JobResult] = []
        for part, _ in cut(rows, self._queueing.tokens):  # windows of a text may be more than the queue takes
            results += await self._runner.run(part, **self._plan.run_options)
        parts = None if self._plan.decomposition is None else (await self._runner.decompose(inputs)).texts
        await asyncio.to_thread(self._put, inputs, results, parts, place)
        if self._progress is not None:
            self._progress(len(inputs))

    def _put(
        self, inputs: list[TokenizedInput], results: list[JobResult], parts: list[TokenParts] | None, place: slice
    ) -> None:
        plan, encoded, spans = self._plan.of(place), self._encoded, None
        if plan.spans is not None:
            spans = plan.spans.find_tokens(inputs, len(plan.prompt.text) if plan.prompt else 0)
        attention = plan.plan_attention(inputs, self._runner.tokenizer)
        answer = build_answer(plan, inputs, results, attention, self._runner, span_tokens=spans, parts=parts)
        encoded.values[place] = answer[encoded.kind]
        encoded.items[place] = answer["items"]
        if self._keeps_ids:
            self.input_ids[place] = [item.input_ids for item in inputs]
        if encoded.attention is not None:
            encoded.attention[place] = answer["attention"]


def cut(portion: Sequence[TokenizedInput], most: int) -> Iterator[tuple[list[TokenizedInput], int]]:
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
