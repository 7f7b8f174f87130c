"""The engine under test: an artifact's graph in ONNX Runtime, under each way to use the cores."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.passes import Pass, run_pass
from benchmarks.lib.report import labels
from benchmarks.lib.tokens import TokenIds, make_batch
from model.artifact import Artifact
from service.inference.backend import Batch, Float32Array
from service.inference.onnx_backend import OnnxBackend
from service.inference.onnx_session import ProviderUnavailable


@dataclass(frozen=True, slots=True)
class Layout:
    """How the cores are used: worker threads, each with this many intra-op threads."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"{self.workers}x{self.threads}"


def all_layouts() -> tuple[Layout, ...]:
    """A worker a core, and one worker on all cores; one and the same on a single core."""
    cores = len(os.sched_getaffinity(0))
    return tuple(dict.fromkeys((Layout(cores, 1), Layout(1, cores))))


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
    backends: Mapping[Layout, OnnxBackend]

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
                layout: OnnxBackend(artifact, intra_op_threads=layout.threads, provider=provider) for layout in layouts
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
