"""The engine under test: an artifact's graph in the engine that it was made for, under each way to use the cores."""

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.comparison import Sample, Way
from benchmarks.lib.texts import TokenIds, make_batch, standard_plans
from benchmarks.peers.worker import layouts_of, pull
from model.artifact import Artifact
from service.inference.backend import Backend, Batch, Float32Array
from service.inference.onnx_backend import ProviderUnavailable
from service.inference.openvino_backend import load_backend


class Layout(NamedTuple):
    """How the cores are used: worker threads, each with this many intra-op threads."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"{self.workers}x{self.threads}"


def run_pass(backend: Backend, batches: Sequence[Batch], workers: int) -> Sample:
    """Runs every batch once, in order, on `workers` threads that take the next one when they are free."""
    began, used = time.perf_counter(), time.process_time()
    latencies = pull(backend.run, batches, workers)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - used
    tokens, texts = sum(int(batch.lengths.sum()) for batch in batches), sum(len(batch.lengths) for batch in batches)
    return Sample(tokens / seconds, texts / seconds, latencies, cpu_us_a_token=1e6 * cpu_seconds / tokens)


class Engine(NamedTuple):
    """An artifact, opened once a layout; its name is folder and precision."""

    name: str
    artifact: Artifact
    backends: Mapping[Layout, Backend]

    @classmethod
    def open(cls, directory: Path, *, provider: str = "cpu", layouts: Sequence[Layout] | None = None) -> "Engine":
        """Verifies an artifact and loads it once a layout.

        Args:
            directory: of the artifact.
            provider: what computes.
            layouts: how; if None a worker a core and one on all cores, on a GPU one, and two of which one prepares.

        Raises:
            ArtifactError: the directory is no artifact, or not the one its manifest describes.
            CannotMeasure: the provider cannot be used.
        """
        artifact = Artifact.open(directory)
        if layouts is None:
            cores = len(os.sched_getaffinity(0))
            layouts = [Layout(*both) for both in ([(1, 1), (2, 1)] if provider == "cuda" else layouts_of(cores))]
        try:
            backends = {
                layout: load_backend(
                    artifact, workers=layout.workers, intra_op_threads=layout.threads, provider=provider
                )
                for layout in layouts
            }
        except ProviderUnavailable as error:
            raise CannotMeasure(str(error)) from error
        return cls(f"{directory} {artifact.manifest.precision}", artifact, backends)

    @property
    def precision(self) -> str:
        """The artifact's."""
        return self.artifact.manifest.precision

    def ways(self, rows: Sequence[TokenIds]) -> dict[str, Way]:
        """The engine alone on all the texts: every plan under every layout."""
        made: dict[str, Way] = {}
        for name, plan in standard_plans(rows).items():
            batches = [make_batch([rows[index] for index in run]) for run in plan]
            for layout, backend in self.backends.items():
                made[f"Polyhead {self.precision}: {name}, {layout}"] = partial(
                    run_pass, backend, batches, layout.workers
                )
        return made

    def pooled(self, rows: Sequence[TokenIds]) -> Float32Array:
        """Vectors `[B, D]` of a few texts, to compare others with."""
        return np.stack(list(next(iter(self.backends.values())).run(make_batch(rows)).output))
