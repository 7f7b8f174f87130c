"""The engine under test: an artifact's graph in the engine that it was made for, under each way to use the cores."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.report import labels
from benchmarks.lib.texts import TokenIds, make_batch
from benchmarks.peers.worker import pull
from export.sources import Folder, find_folder
from model.artifact import Artifact, hash_file
from service.inference.backend import Backend, Batch, Float32Array
from service.inference.onnx_backend import ProviderUnavailable
from service.inference.openvino_backend import load_backend


@dataclass(frozen=True, slots=True)
class Layout:
    """How the cores are used: worker threads, each with this many intra-op threads."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"{self.workers}x{self.threads}"


def all_layouts(provider: str = "cpu") -> tuple[Layout, ...]:
    """A worker a core, and one worker on all cores; on a GPU one worker, and two of which one prepares."""
    if provider == "cuda":
        return (Layout(1, 1), Layout(2, 1))
    cores = len(os.sched_getaffinity(0))
    return tuple(dict.fromkeys((Layout(cores, 1), Layout(1, cores))))


@dataclass(frozen=True, slots=True)
class Pass:
    """One run over all batches.

    Attributes:
        seconds: from the first batch's start to the last one's end.
        tokens: real tokens in all batches.
        texts: rows in all batches.
        latencies: seconds of each `run`.
        cpu_seconds: processor time of this process meanwhile.
    """

    seconds: float
    tokens: int
    texts: int
    latencies: list[float]
    cpu_seconds: float | None = None

    @property
    def tokens_per_s(self) -> float:
        """Real tokens a second, padding not counted."""
        return self.tokens / self.seconds

    @property
    def texts_per_s(self) -> float:
        """Rows a second."""
        return self.texts / self.seconds


def run_pass(backend: Backend, batches: Sequence[Batch], workers: int) -> Pass:
    """Runs every batch once, in order, on `workers` threads that take the next one when they are free."""
    began, used = time.perf_counter(), time.process_time()
    latencies = pull(backend.run, batches, workers)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - used
    tokens, texts = sum(int(batch.lengths.sum()) for batch in batches), sum(len(batch.lengths) for batch in batches)
    return Pass(seconds, tokens, texts, latencies, cpu_seconds)


@dataclass(frozen=True, slots=True)
class Engine:
    """An artifact, opened once a layout.

    Attributes:
        name: folder and precision; no other engine of a run has it.
        artifact: the verified directory.
        backends: a session a layout.
    """

    name: str
    artifact: Artifact
    backends: Mapping[Layout, Backend]

    @classmethod
    def open(
        cls, directory: Path, layouts: Sequence[Layout], *, provider: str = "cpu", label: str | None = None
    ) -> "Engine":
        """Verifies an artifact and loads it once a layout; the label is the folder's name unless told.

        Raises:
            ArtifactError: the directory is no artifact, or not the one its manifest describes.
            CannotMeasure: the provider cannot be used.
        """
        artifact = Artifact.open(directory)
        try:
            backends = {
                layout: load_backend(
                    artifact, workers=layout.workers, intra_op_threads=layout.threads, provider=provider
                )
                for layout in layouts
            }
        except ProviderUnavailable as error:
            raise CannotMeasure(str(error)) from error
        return cls(f"{label or directory.name} {artifact.manifest.precision}", artifact, backends)

    @classmethod
    def open_all(
        cls, directories: Sequence[Path], layouts: Sequence[Layout], *, provider: str = "cpu"
    ) -> list["Engine"]:
        """Several artifacts, each under a name of its own; see `open`."""
        names = labels(directories)
        return [cls.open(path, layouts, provider=provider, label=names[path]) for path in directories]

    def runner(self, batches: Sequence[Batch], layout: Layout) -> Callable[[], Pass]:
        """One pass over the batches, ready to be called."""
        return partial(run_pass, self.backends[layout], batches, layout.workers)

    def pooled(self, rows: Sequence[TokenIds]) -> Float32Array:
        """Vectors `[B, D]` of a few texts, to compare others with."""
        return np.stack(list(next(iter(self.backends.values())).run(make_batch(rows)).output))


WEIGHTS = "model.safetensors"


def checkpoint_folder(model: str | None, artifact: Artifact) -> Folder:
    """The folder of a checkpoint, once it is sure that the artifact was made from it.

    Args:
        model: None for the default model, a folder or a Hugging Face id.
        artifact: compared by the weights' SHA-256.

    Raises:
        CannotMeasure: the hashes differ.
        SourceError: there is no such checkpoint.
    """
    folder = find_folder(model)
    found, expected = hash_file(folder.path / WEIGHTS), artifact.manifest.source.sha256
    if found != expected:
        raise CannotMeasure(f"{folder.path / WEIGHTS} has SHA-256 {found}, the artifact was made from {expected}")
    return folder
