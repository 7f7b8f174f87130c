"""Loads an artifact and runs it: tokenizer, backend and batcher, put together once.

It knows no HTTP. The order of loading is the order of trust: every file's hash is checked before one is opened.
"""

import asyncio
import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from model.artifact import EXPLAIN_GRAPH, HEADS, MANIFEST, ONNX_RUNTIME, OPENVINO, TOKENIZER, Artifact, Manifest
from model.config import EncoderConfig
from model.processor import has_integer_products, vector_instructions
from service.batching.batcher import Batcher
from service.batching.decompositions import Decomposed, DecompositionQueue
from service.batching.jobs import Job, JobResult
from service.errors import Overloaded, ServiceError
from service.inference.backend import Backend, Decomposer, Float32Array, WholeText
from service.inference.openvino_backend import OpenVinoBackend, load_backend
from service.inference.token_outputs import QueryTable, TokenOutputs
from service.machine import usable_cores
from service.observability.stages import BatchRecord, note_stage
from service.settings import Settings
from service.tokenization.inputs import tokenize
from service.tokenization.rows import TokenizedInput
from service.tokenization.tokenizer import Tokenizer

_TOKEN_CHARACTERS = 4  # of English text, about
HANG_SECONDS = 30.0  # beyond the last deadline, at which a run is cancelled: one that still goes on hangs

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where the model runs, and with how many threads.

    Attributes:
        workers: runs at the same time.
        engine: what computes plain answers: `onnxruntime` or `openvino`.
        computes_in: the arithmetic of these; empty if it is the artifact's precision.
        instructions: of the processor, those that decide its speed.
        batch_invariant: whether a text's vector has the same bits whatever else is in its batch.
    """

    provider: str
    workers: int
    intra_op_threads: int
    engine: str = ONNX_RUNTIME
    computes_in: str = ""
    instructions: tuple[str, ...] = ()
    batch_invariant: bool = False


class Runner:
    """Runs the model on tokenised texts, from any number of tasks of one event loop at once.

    Attributes:
        name: what answers call it: its own name, or the one that it is served by.
        tokenize: `service.tokenization.inputs.tokenize` with this model's tokenizer.
        batcher: the queue of texts, and the workers that run them.
        written: when its manifest was written, in seconds since 1970.
        head_report: the artifact's `heads.json`; None if it has none.
        token_outputs: what it makes of tokens besides a text's vector; None if it has none.
    """

    def __init__(
        self,
        artifact: Artifact,
        tokenizer: Tokenizer,
        batcher: Batcher,
        runtime: Runtime,
        decompositions: DecompositionQueue | None = None,
    ) -> None:
        self.artifact = artifact
        self.name = artifact.manifest.model
        self.tokenizer = tokenizer
        self.tokenize = partial(tokenize, tokenizer, vocab_size=self.config.vocab_size)
        self.runtime = runtime
        self.written = artifact.path(MANIFEST).stat().st_mtime  # now: another artifact may replace this one later
        self.head_report = artifact.path(HEADS).read_bytes() if HEADS in artifact.manifest.files else None
        self.token_outputs = TokenOutputs.load(artifact)
        self._query_table = QueryTable.load(artifact, tokenizer.special_ends)
        self.batcher = batcher
        self._decompositions = decompositions

    @classmethod
    def load(
        cls,
        directory: Path | str,
        settings: Settings | None = None,
        *,
        on_batch: Callable[[BatchRecord], object] = lambda _: None,
    ) -> Self:
        """Verifies, loads and warms up an artifact. Blocks for as long as that takes.

        Args:
            directory: the artifact.
            settings: None as `unhurried` has them.
            on_batch: called on a worker's thread after every batch.

        Raises:
            ArtifactError: the directory is no artifact, or a file is not the one its manifest describes.
            Exception: the backend's own, where the graph does not load or run.
        """
        directory = Path(directory)
        settings = settings or unhurried(directory)
        artifact = Artifact.open(directory)
        runtime = plan_runtime(settings)
        warn_of_slow_precision(artifact.manifest, runtime.provider)
        tokenizer = Tokenizer.load(
            artifact.path(TOKENIZER),
            artifact.manifest.max_sequence_length,
            threads=runtime.workers,
            pair_wording=artifact.manifest.pair_wording,
            max_delay=settings.max_queue_delay,
        )
        backend = load_backend(
            artifact, workers=runtime.workers, intra_op_threads=runtime.intra_op_threads, provider=runtime.provider
        )
        backend.warm_up()
        runtime = replace(runtime, instructions=vector_instructions())
        if isinstance(backend, OpenVinoBackend):
            runtime = replace(runtime, engine=OPENVINO, computes_in=backend.computes_in)
        else:
            runtime = replace(runtime, batch_invariant=runtime.provider == "cpu")
        batcher = make_batcher(backend, settings, workers=runtime.workers, on_batch=on_batch)
        runner = cls(artifact, tokenizer, batcher, runtime, make_decompositions(artifact, settings, runtime, on_batch))
        batcher.start()  # last: a folder that turns out to be broken leaves no threads, which would keep the backend
        return runner

    @property
    def manifest(self) -> Manifest:
        """What the artifact says of itself."""
        return self.artifact.manifest

    @property
    def config(self) -> EncoderConfig:
        """The network."""
        return self.artifact.manifest.config

    @property
    def queued_explain_vectors(self) -> int:
        """Token vectors of the texts that are explained through the network, or wait for it."""
        return self._decompositions.waiting_rows if self._decompositions is not None else 0

    def is_alive(self) -> bool:
        """Whether every worker answers."""
        return self.batcher.is_alive()

    def early_refusal(self, tokens: int, others: int = 0, refused: int = 0) -> Overloaded | None:
        """Why a queue would refuse a request, before it is read: see `Batcher.early_refusal`."""
        characters = _TOKEN_CHARACTERS * tokens
        return self.batcher.early_refusal(tokens, others, refused) or self.tokenizer.early_refusal(characters)

    async def run(
        self,
        inputs: Sequence[TokenizedInput],
        *,
        attention_layers: tuple[int, ...] = (),
        wants_tokens: bool = False,
        wants_norms: bool = False,
        head_gates: Float32Array | None = None,
        by_table: bool = False,
        deadline: float | None = None,
    ) -> list[JobResult]:
        """Runs the model on tokenised inputs; results in their order.

        Args:
            inputs: what to encode.
            attention_layers: layers whose weights are computed, ascending.
            wants_tokens: whether `last_hidden_state` is returned.
            wants_norms: whether the value norms of these layers are returned.
            head_gates: [sum of all layers' heads], factors on what each head adds to every input; None for none.
            by_table: read the inputs as queries of a sparse model that has a table for them; the network does not run.
            deadline: `time.monotonic()` value after which the answer is worth nothing.

        Raises:
            ServiceError: Overloaded, DeadlineExceeded, InferenceFailed or NotReady.
        """
        if by_table and (table := self._query_table) is not None:
            ids = [item.input_ids for item in inputs]
            words = await asyncio.to_thread(lambda: [table.words(row) for row in ids])
            return [JobResult(found, None, {}, 0.0, 0.0) for found in words]
        jobs = [
            Job(item.input_ids, attention_layers, wants_tokens, wants_norms, head_gates, item.type_ids, item.seen)
            for item in inputs
        ]
        submitted = time.monotonic()
        try:
            results = await self.batcher.submit(jobs, deadline=deadline)
        except ServiceError:
            note_stage("queue", submitted)
            raise
        if results:  # between the two ends, texts of a large request may wait again for a worker
            began = submitted + min(result.queue_seconds for result in results)
            ended = submitted + max(result.queue_seconds + result.inference_seconds for result in results)
            note_stage("queue", submitted, began)
            note_stage("inference", began, ended)
        return results

    async def decompose(
        self, inputs: Sequence[TokenizedInput], *, place: int | None = None, deadline: float | None = None
    ) -> Decomposed:
        """What each token of some inputs gives to the model's output, through every layer; in their order.

        Of a model that labels tokens the output is the logits of the token at `place`.

        Raises:
            ValueError: the artifact has no graph for it.
            ServiceError: as of `run`.
        """
        if self._decompositions is None:
            raise ValueError(f"{self.artifact.directory} has no {EXPLAIN_GRAPH}")
        submitted = time.monotonic()
        try:
            texts = [WholeText(item.input_ids, item.type_ids, place) for item in inputs]
            found = await self._decompositions.submit(texts, deadline=deadline)
        except ServiceError:
            note_stage("queue", submitted)
            raise
        note_stage("queue", submitted, submitted + found.queue_seconds)
        note_stage("inference", submitted + found.queue_seconds)
        return found

    def close(self, timeout: float) -> bool:
        """Finishes queued texts and ends the threads; False if that took longer than `timeout` seconds. Blocks."""
        self.tokenizer.close()
        if self._decompositions is not None:
            self._decompositions.close()
        return self.batcher.close(timeout)


def unhurried(directory: Path, **options: Any) -> Settings:
    """Settings by which nothing is refused for having to wait, and no run hangs, however slow the machine."""
    return Settings.model_construct(
        model=directory, max_queue_delay=math.inf, max_queue_tokens=sys.maxsize, request_timeout=math.inf, **options
    )


def make_decompositions(
    artifact: Artifact, settings: Settings, runtime: Runtime, on_batch: Callable[[BatchRecord], object]
) -> DecompositionQueue | None:
    """The queue of texts to explain through the network; None if the artifact has no graph for it."""
    if EXPLAIN_GRAPH not in artifact.manifest.files:
        return None

    def load() -> Decomposer:
        from service.inference.onnx_backend import OnnxDecomposer  # noqa: PLC0415 - where it runs, as the backend

        artifact.check()  # it is loaded when it is first asked for: the folder may hold another model by then
        return OnnxDecomposer(artifact, provider=runtime.provider)

    return DecompositionQueue(
        load,
        threads=runtime.workers,
        max_delay=settings.max_queue_delay,
        on_run=lambda seconds: on_batch(BatchRecord(0, 0, 0, seconds)),
    )


def make_batcher(
    backend: Backend, settings: Settings, *, workers: int, on_batch: Callable[[BatchRecord], object]
) -> Batcher:
    """A batcher over a backend, as the settings say; not started."""
    return Batcher(
        backend,
        workers=workers,
        max_batch_tokens=settings.batch_tokens,
        max_queue_tokens=settings.max_queue_tokens,
        max_queue_delay=settings.max_queue_delay,
        on_batch=on_batch,
        max_run_seconds=settings.request_timeout + HANG_SECONDS,
    )


def plan_runtime(settings: Settings) -> Runtime:
    """The threads that the settings ask for. By default a CPU gets a worker for each usable core, a GPU one."""
    cores, threads, on_cpu = usable_cores(), settings.intra_op_threads, settings.provider == "cpu"
    workers = settings.workers or (max(1, cores // threads) if on_cpu else 1)
    if on_cpu and workers * threads > cores:
        fewer = f"--workers {cores // threads}, or 0 to have it chosen"
        advice = f"--intra-op-threads {cores}" if threads > cores else fewer
        logger.warning(
            "%d workers with %d threads compete for %d usable cores: set %s", workers, threads, cores, advice
        )
    return Runtime(settings.provider, workers, threads)


def warn_of_slow_precision(manifest: Manifest, provider: str) -> None:
    """Warns where another artifact of the same model would be faster."""
    if provider != "cpu":
        return
    if manifest.precision == "int8" and not manifest.fits_16_bits and has_integer_products() is False:
        logger.warning("this int8 artifact is slow on a processor without VNNI, AMX or dot product: export it again")
    if manifest.precision == "fp16":
        logger.warning("fp16 is converted at every step on a CPU and slower than fp32: it is for --provider cuda")
