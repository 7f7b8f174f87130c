"""Loads an artifact and runs it: tokenizer, backend and batcher, put together once.

It knows no HTTP. The order of loading is the order of trust: every file's hash is checked before one is opened.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, Unpack

from model.artifact import EXPLAIN_GRAPH, HEADS, MANIFEST, TOKENIZER, Artifact
from model.config import EncoderConfig
from model.manifest import Manifest
from service.batching.batcher import Batcher
from service.batching.decompositions import Decomposed, DecompositionQueue, WholeText
from service.batching.jobs import Job, JobResult
from service.errors import Overloaded, ServiceError
from service.inference.backend import Backend, Float32Array
from service.inference.decomposer import OnnxDecomposer
from service.inference.onnx_backend import OnnxBackend
from service.observability.batch_record import BatchRecord
from service.observability.request_trace import note_stage
from service.runtime import Runtime, plan_runtime, warn_of_slow_precision
from service.settings import Settings
from service.tokenization.inputs import Inputs
from service.tokenization.tokenize import TokenizeOptions, tokenize
from service.tokenization.tokenized import TokenizedInput
from service.tokenization.tokenizer import Tokenizer

HANG_SECONDS = 30.0  # beyond the last deadline, at which a run is cancelled: one that still goes on hangs


class Runner:
    """Runs the model on tokenised texts, from any number of tasks of one event loop at once.

    Attributes:
        artifact: what was loaded.
        tokenizer: text to token ids.
        runtime: provider and threads.
        written: when its manifest was written, in seconds since 1970.
        head_report: the artifact's `heads.json`; None where it has none.
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
        self.tokenizer = tokenizer
        self.runtime = runtime
        self.written = (
            artifact.path(MANIFEST).stat().st_mtime
        )  # read now: another artifact may replace it while this one serves
        self.head_report = artifact.path(HEADS).read_bytes() if HEADS in artifact.manifest.files else None
        self._batcher = batcher
        self._decompositions = decompositions

    @classmethod
    def load(
        cls,
        directory: Path | str,
        settings: Settings | None = None,
        *,
        on_batch: Callable[[BatchRecord], None] | None = None,
    ) -> Self:
        """Verifies, loads and warms up an artifact. Blocks for as long as that takes.

        Args:
            directory: the artifact.
            settings: threads and the sizes of batches and queue; None takes the defaults, nothing is refused for having
                to wait, and no run counts as hanging, however slow the machine.
            on_batch: called on a worker's thread after every batch.

        Raises:
            ArtifactError: the directory is no artifact, or a file is not the one its manifest describes.
            Exception: the backend's own, where the graph does not load or run.
        """
        directory = Path(directory)
        settings = settings or Settings.model_construct(
            model=directory, max_queue_delay=math.inf, request_timeout=math.inf
        )
        artifact = Artifact.open(directory)
        runtime = plan_runtime(settings)
        warn_of_slow_precision(artifact.manifest, runtime.provider)
        tokenizer = Tokenizer.load(
            artifact.path(TOKENIZER),
            artifact.manifest.max_sequence_length,
            threads=runtime.workers,
            pair_wording=artifact.manifest.pair_wording,
        )
        backend = OnnxBackend(artifact, intra_op_threads=runtime.intra_op_threads, provider=runtime.provider)
        backend.warm_up()
        batcher = make_batcher(backend, settings, workers=runtime.workers, on_batch=on_batch)
        batcher.start()
        return cls(artifact, tokenizer, batcher, runtime, make_decompositions(artifact, settings, runtime))

    @property
    def manifest(self) -> Manifest:
        """What the artifact says of itself."""
        return self.artifact.manifest

    @property
    def config(self) -> EncoderConfig:
        """The network."""
        return self.artifact.manifest.config

    @property
    def queued_texts(self) -> int:
        """Texts waiting for a worker."""
        return self._batcher.queued_texts

    @property
    def queued_tokens(self) -> int:
        """Tokens waiting for a worker."""
        return self._batcher.queued_tokens

    @property
    def oldest_age(self) -> float:
        """Seconds that the oldest waiting text has waited."""
        return self._batcher.oldest_age

    def is_alive(self) -> bool:
        """Whether every worker answers."""
        return self._batcher.is_alive()

    def early_refusal(self, tokens: int, others: int = 0, refused: int = 0) -> Overloaded | None:
        """Why the queue would refuse a request, before it is read: see `Batcher.early_refusal`."""
        return self._batcher.early_refusal(tokens, others, refused)

    async def tokenize(self, inputs: Inputs, **options: Unpack[TokenizeOptions]) -> list[TokenizedInput]:
        """Inputs as the model sees them: `service.tokenization.tokenize.tokenize` with this model's tokenizer."""
        return await tokenize(self.tokenizer, inputs, vocab_size=self.config.vocab_size, **options)

    async def run(
        self,
        inputs: Sequence[TokenizedInput],
        *,
        attention_layers: tuple[int, ...] = (),
        wants_tokens: bool = False,
        wants_norms: bool = False,
        head_gates: Float32Array | None = None,
        deadline: float | None = None,
    ) -> list[JobResult]:
        """Runs the model on tokenised inputs; results in their order.

        Args:
            inputs: what to encode.
            attention_layers: layers whose weights are computed, ascending.
            wants_tokens: whether `last_hidden_state` is returned.
            wants_norms: whether the value norms of these layers are returned.
            head_gates: [sum of all layers' heads], factors on what each head adds to every input; None for none.
            deadline: `time.monotonic()` value after which the answer is worth nothing.

        Raises:
            ServiceError: Overloaded, DeadlineExceeded, InferenceFailed or NotReady.
        """
        jobs = [
            Job(item.input_ids, attention_layers, wants_tokens, wants_norms, head_gates, item.type_ids)
            for item in inputs
        ]
        submitted = time.monotonic()
        try:
            results = await self._batcher.submit(jobs, deadline=deadline)
        except ServiceError:
            note_stage("queue", submitted)
            raise
        _note_runs(submitted, results)
        return results

    async def decompose(self, inputs: Sequence[TokenizedInput], *, deadline: float | None = None) -> Decomposed:
        """What each token of some inputs gives to the model's output, through every layer; in their order.

        Raises:
            ValueError: the artifact has no graph for it.
            ServiceError: as of `run`.
        """
        if self._decompositions is None:
            raise ValueError(f"{self.artifact.directory} has no {EXPLAIN_GRAPH}")
        submitted = time.monotonic()
        try:
            texts = [WholeText(item.input_ids, item.type_ids) for item in inputs]
            found = await self._decompositions.submit(texts, deadline=deadline)
        except ServiceError:
            note_stage("queue", submitted)
            raise
        note_stage("queue", submitted, submitted + found.queue_seconds)
        note_stage("inference", submitted + found.queue_seconds)
        return found

    def close(self, timeout: float) -> bool:
        """Finishes what is queued and ends the threads; False if that took longer than `timeout` seconds. Blocks."""
        self.tokenizer.close()
        if self._decompositions is not None:
            self._decompositions.close()
        return self._batcher.close(timeout)


def _note_runs(submitted: float, results: Sequence[JobResult]) -> None:
    """Notes in the trace the wait for a request's first run, and the time from there to the end of its last.

    Between the two ends texts of a large request may wait again for a worker.
    """
    if results:
        began = submitted + min(result.queue_seconds for result in results)
        ended = submitted + max(result.queue_seconds + result.inference_seconds for result in results)
        note_stage("queue", submitted, began)
        note_stage("inference", began, ended)


def make_decompositions(artifact: Artifact, settings: Settings, runtime: Runtime) -> DecompositionQueue | None:
    """The queue of what is explained through the network; None where the artifact has no graph for it."""
    if EXPLAIN_GRAPH not in artifact.manifest.files:
        return None
    return DecompositionQueue(
        lambda: OnnxDecomposer(artifact, provider=runtime.provider),
        threads=runtime.workers,
        max_delay=settings.max_queue_delay,
    )


def make_batcher(
    backend: Backend, settings: Settings, *, workers: int, on_batch: Callable[[BatchRecord], None] | None = None
) -> Batcher:
    """A batcher over a backend, as the settings say; not started."""
    return Batcher(
        backend,
        workers=workers,
        max_batch_tokens=settings.max_batch_tokens,
        max_queue_tokens=settings.max_queue_tokens,
        max_queue_delay=settings.max_queue_delay,
        on_batch=on_batch,
        max_run_seconds=settings.request_timeout + HANG_SECONDS,
    )
