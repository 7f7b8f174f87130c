"""One call that encodes any number of inputs: tokenised a portion at a time, run as the queue has space."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal

import numpy as np
from typing_extensions import TypeVar  # whose defaults let callers write `Encoded`; pydantic brings it

from model.artifact import Manifest
from model.config_parts import Task
from service.answers.answer import build_answer
from service.answers.attention import add_blocks, attention_picture
from service.answers.explained import run_explaining
from service.answers.scores import similarities
from service.answers.vectors import quantize
from service.batching.jobs import JobResult
from service.errors import WrongTask
from service.inference.backend import Float32Array, TokenParts
from service.requests.explain import ExplainPlan
from service.requests.plan import EncodePlan, plan_encoding
from service.requests.roles import TextRole
from service.requests.scoring import Scoring, reads_pairs, texts_to_compare
from service.runner import Runner
from service.tokenization.inputs import InputNames, Inputs, refuse_empty
from service.tokenization.rows import TokenizedInput, all_windows

PORTION_TEXTS = 256  # tokenised at once, while the workers run the portion before

PART_TOKENS, PARTS_AT_ONCE = 4096, 8
"""What a call has in the queue at once: enough to find texts of equal length among."""

Progress = Callable[[int], object]

Kind = Literal["embeddings", "scores", "sparse", "entities"]

EXPLAINED_BY: Mapping[Task, str] = {
    "embedding": "explain",
    "classification": "explain_score",
    "token_classification": "explain_score",
}
"""Which call of an engine explains what a model of a task answers."""

V = TypeVar("V", default=Any)
A = TypeVar("A", default=Any)
"""Of `Encoded`: what `values` and `attention` are."""


@dataclass(frozen=True, slots=True, eq=False)  # arrays have no one answer to ==
class Encoded(Generic[V, A]):
    """What `Engine.encode` returns; one entry an input, in their order.

    Attributes:
        kind: of the results: `embeddings`, `scores`, `sparse` or `entities`. The attribute of this name holds them,
            the others raise an AttributeError that says what there is.
        values: the same, whichever it is.
        items: `{"tokens", "truncated", ...}` of each input, as in `POST /encode`'s answer.
        attention: `POST /encode`'s entries with arrays instead of lists; None if none was asked for.
        prompt: what was put in front of each text, or None.
        labels: names of the scores' columns; empty if there are no scores.
    """

    kind: Kind
    values: V
    items: list[dict[str, Any]]
    attention: A
    prompt: str | None
    labels: tuple[str, ...] = ()

    @property
    def embeddings(self) -> V:
        """float32 [N, dimensions], or int8 and uint8 where `encoding_format` says so.

        Of a multi-vector model, with `output="tokens"` and with `spans` a list of [n, dimensions].
        """
        found: V = self._of("embeddings")
        return found

    @property
    def scores(self) -> Any:
        """float32 [N, labels] of a classifier or cross-encoder; of a token classifier a list of [n, labels]."""
        return self._of("scores")

    @property
    def sparse(self) -> list[dict[str, Any]]:
        """`{"indices", "values"}` of each input: ids of words, and their weights."""
        return list(self._of("sparse"))

    @property
    def entities(self) -> list[list[dict[str, Any]]]:
        """What a token classifier found in each input, as `POST /predict` answers it."""
        return list(self._of("entities"))

    def _repr_html_(self) -> str | None:
        """In a notebook: the first head of the first text's attention, and all heads small; None without attention."""
        entries: Any = self.attention
        return attention_picture(entries[0]) if entries else None

    def _of(self, kind: Kind) -> Any:
        if self.kind != kind:
            raise AttributeError(f"this model returns no {kind}: read .{self.kind}")
        return self.values


def empty_result(plan: EncodePlan) -> Encoded[Any, Any]:
    """What a call returns, with room for all of it and nothing in it yet."""
    count, request, manifest = len(plan.inputs), plan.request, plan.manifest
    kind: Kind = "embeddings"
    if request.entities is not None:
        kind = "entities"
    elif request.output == "pooled" and manifest.task in {"classification", "token_classification"}:
        kind = "scores"
    elif request.output == "pooled" and manifest.task == "sparse":
        kind = "sparse"
    values: Any = [np.empty(0, np.float32)] * count
    if plan.is_one_array:
        none = quantize(np.empty((0, plan.dimensions), np.float32), request.encoding_format, manifest)
        values = np.empty((count, *none.shape[1:]), none.dtype)
    attention: Any = [{}] * count if request.attention else None
    labels = manifest.labels if kind == "scores" else ()
    return Encoded(kind, values, [{}] * count, attention, plan.prompt.document().get("prompt"), labels)


@dataclass
class EncodeCall:
    """One call; `names` is what the caller calls the inputs, and `role` says how texts are read."""

    runner: Runner
    plan: EncodePlan
    names: InputNames
    progress: Progress | None
    role: TextRole

    def __post_init__(self) -> None:
        self._encoded = empty_result(self.plan)

    async def run(self) -> Encoded[Any, Any]:
        """Encodes all inputs, or raises the `ServiceError` that keeps one from being encoded."""
        start, space = 0, asyncio.Semaphore(PARTS_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                async for portion in self._portions():
                    for part in cut(portion):
                        await space.acquire()
                        running = group.create_task(self._run(part, start))
                        running.add_done_callback(lambda _: space.release())
                        start += len(part)
        except BaseExceptionGroup as failed:
            error = failed.exceptions[0]
            raise error from error.__cause__  # and not from the group
        return self._encoded

    async def _portions(self) -> AsyncIterator[list[TokenizedInput]]:
        """The inputs as tokens, a portion at a time."""
        plan = self.plan
        for start in range(0, len(plan.inputs), PORTION_TEXTS):
            names = replace(self.names, start=start)
            portion = await self.runner.tokenize(
                plan.inputs[start : start + PORTION_TEXTS],
                truncate=plan.request.truncate,
                pair_truncation=plan.request.pair_truncation,
                names=names,
                ids_only=plan.needs_only_ids,
                most_tokens=self.role.most_tokens,
                overlap=plan.overlap,
            )
            refuse_empty(portion, names=names)
            yield self.role.expand(portion)

    async def _run(self, inputs: list[TokenizedInput], start: int) -> None:
        """Runs a part of the inputs and puts it in its place at once: results take several times what is kept."""
        place = slice(start, start + len(inputs))
        rows = inputs if self.plan.request.long_texts is None else all_windows(inputs)
        results: list[JobResult] = []
        for part in cut(rows):  # windows of a text may be many
            results += await self.runner.run(part, **self.plan.run_options)
        parts = None if not self.plan.decomposes else (await self.runner.decompose(inputs)).texts
        await asyncio.to_thread(self._put, inputs, results, parts, place)
        if self.progress is not None:
            self.progress(len(inputs))

    def _put(
        self, inputs: list[TokenizedInput], results: list[JobResult], parts: list[TokenParts] | None, place: slice
    ) -> None:
        plan, encoded, spans = self.plan.of(place), self._encoded, None
        if plan.spans is not None:
            spans = plan.spans.find_tokens(inputs, len(plan.prompt.text))
        axes = plan.axes(inputs, self.runner.tokenizer)
        answer = build_answer(plan, inputs, results, axes, self.runner, span_tokens=spans, parts=parts)
        encoded.values[place] = answer[encoded.kind]
        encoded.items[place] = answer["items"]
        if encoded.attention is not None:
            encoded.attention[place] = answer["attention"]


def cut(portion: Sequence[TokenizedInput]) -> Iterator[list[TokenizedInput]]:
    """A portion as parts of at most `PART_TOKENS`; a longer text is a part alone."""
    part: list[TokenizedInput] = []
    tokens = 0
    for item in portion:
        length = len(item.input_ids)
        if part and tokens + length > PART_TOKENS:
            yield part
            part, tokens = [], 0
        part.append(item)
        tokens += length
    if part:
        yield part


async def score_all(
    runner: Runner, scoring: Scoring, progress: Progress | None
) -> tuple[Float32Array, list[dict[str, Any]] | None]:
    """Each document's score [N], and the attention across its pair where that was asked for. Raises `ServiceError`."""
    manifest = runner.manifest
    if reads_pairs(scoring, manifest):
        request, role = scoring.pair_request(), TextRole(most_tokens=scoring.most_tokens_of_pair)
        plan = plan_encoding(request, Inputs(text_pairs=request.pairs), manifest)
        encoded = await EncodeCall(runner, plan, scoring.names, progress, role).run()
        return encoded.scores[:, 0], add_blocks(encoded.attention)
    found, request = [], scoring.vector_request(manifest)
    sides = texts_to_compare(scoring, manifest, runner.tokenizer.num_special_tokens)
    for name, texts, told in zip(("query", "document"), sides, (None, progress), strict=True):
        plan = plan_encoding(request.model_copy(update={"role": name}), texts.inputs, manifest)
        found.append((await EncodeCall(runner, plan, texts.names, told, texts.role).run()).values)
    queries, documents = found
    place_of = {query: place for place, query in enumerate(scoring.each_query_once())}
    places = [place_of[query] for query in scoring.one_each()]
    return similarities([queries[place] for place in places], documents, manifest), None


def require_explained_by(call: str, manifest: Manifest) -> None:
    """Raises `WrongTask` for a model that another call explains, which it names, or none."""
    own = EXPLAINED_BY.get(manifest.task)
    if own == call:
        return
    what = "the similarity of two embeddings" if call == "explain" else "a classifier's scores"
    cure = "" if own is None else f"; call {own}"
    raise WrongTask(f"{manifest.model} is for {manifest.task.replace('_', '-')}: only {what} can be explained{cure}")


async def explain_texts(runner: Runner, plan: ExplainPlan) -> Any:
    """`Explained` of two texts, `ExplainedScore` of what a classifier reads; of any length that the model takes."""
    texts = await runner.tokenize(plan.inputs, names=plan.names, truncate=plan.request.truncate)
    plan.check_texts(texts, max_explained=runner.tokenizer.max_sequence_length)
    return await asyncio.to_thread(await run_explaining(plan, texts, runner))
