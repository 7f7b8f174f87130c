"""`polyhead tune`: which use of this machine's cores suits this artifact.

Workers times threads is the one choice: many workers with one thread each give the most throughput, one worker with
many threads the least latency of a single text, and where the two cross depends on the machine and the model. Each
layout is measured with texts of natural lengths; the answer is a table, and settings to copy.
"""

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.artifact import Artifact
from model.manifest import ArtifactError
from polyhead.artifact_option import add_artifact, chosen_artifact
from service.batching.batcher import Batcher
from service.batching.jobs import Job
from service.inference.onnx_backend import OnnxBackend
from service.inference.onnx_session import ProviderUnavailable
from service.machine.cpu import usable_cores
from service.runner import make_batcher
from service.settings import Settings, SettingsError, read_settings

PROGRAM = "polyhead tune"
CONCURRENCY = 64  # requests under way while throughput is measured: enough that batches fill
LATENCY_SHARE = 0.5  # of the seconds of a layout, for texts that come one at a time
SEED = 0
INTERRUPTED = 130  # what shells expect after Ctrl-C
# Lengths of English sentences and short paragraphs in tokens: log-normal, 33 on average, a tail to several hundred.
MEDIAN_TOKENS, LENGTH_SPREAD = 25.0, 0.75


@dataclass(frozen=True, slots=True)
class Layout:
    """A use of the cores."""

    workers: int
    intra_op_threads: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a layout gave.

    Attributes:
        layout: the layout.
        tokens_per_second: with many texts waiting.
        texts_per_second: likewise.
        latency_p50: median seconds of a text that comes alone.
        latency_p95: 95th percentile of the same.
    """

    layout: Layout
    tokens_per_second: float
    texts_per_second: float
    latency_p50: float
    latency_p95: float


def layouts(cores: int) -> list[Layout]:
    """Every way to give all cores equal workers, and all but one core one worker each (the rest is left for HTTP)."""
    even = [Layout(cores // threads, threads) for threads in range(1, cores + 1) if cores % threads == 0]
    return [*even, Layout(cores - 1, 1)] if cores > 2 else even


def natural_jobs(count: int, longest: int, vocab_size: int) -> list[Job]:
    """Texts of natural lengths; which tokens they hold does not matter for speed."""
    generator = np.random.default_rng(SEED)
    lengths = generator.lognormal(np.log(MEDIAN_TOKENS), LENGTH_SPREAD, count).round().astype(int).clip(3, longest)
    return [Job(generator.integers(0, vocab_size, length)) for length in lengths]


def measure(artifact: Artifact, layout: Layout, seconds: float, settings: Settings) -> Measurement:
    """Runs one layout for about so many seconds."""
    backend = OnnxBackend(artifact, intra_op_threads=layout.intra_op_threads, provider=settings.provider)
    backend.warm_up()
    # Measuring refuses nothing: however long the queue, its work is to be done.
    patient = settings.model_copy(update={"max_queue_delay": math.inf})
    batcher = make_batcher(backend, patient, workers=layout.workers)
    manifest = artifact.manifest
    jobs = natural_jobs(512, manifest.max_sequence_length, manifest.config.vocab_size)
    batcher.start()
    try:
        return asyncio.run(_measure(batcher, layout, jobs, seconds))
    finally:
        batcher.close(timeout=10)


async def _measure(batcher: Batcher, layout: Layout, jobs: Sequence[Job], seconds: float) -> Measurement:
    waits = await _one_at_a_time(batcher, jobs, seconds * LATENCY_SHARE)
    started = time.perf_counter()
    end = started + seconds * (1 - LATENCY_SHARE)
    done = await asyncio.gather(*(_keep_busy(batcher, jobs[start:], end) for start in range(CONCURRENCY)))
    took = time.perf_counter() - started
    texts, tokens = (sum(column) for column in zip(*done, strict=True))
    p50, p95 = np.quantile(waits, [0.5, 0.95]).tolist()
    return Measurement(layout, tokens / took, texts / took, p50, p95)


async def _one_at_a_time(batcher: Batcher, jobs: Sequence[Job], seconds: float) -> list[float]:
    """Seconds that each text took, alone."""
    waits: list[float] = []
    end = time.perf_counter() + seconds
    while not waits or time.perf_counter() < end:
        started = time.perf_counter()
        await batcher.submit([jobs[len(waits) % len(jobs)]])
        waits.append(time.perf_counter() - started)
    return waits


async def _keep_busy(batcher: Batcher, jobs: Sequence[Job], end: float) -> tuple[int, int]:
    """Sends one text after the other until the end; texts and tokens that came back."""
    texts = tokens = 0
    while time.perf_counter() < end:
        job = jobs[texts % len(jobs)]
        await batcher.submit([job])
        texts += 1
        tokens += len(job.input_ids)
    return texts, tokens


def report(measured: Sequence[Measurement]) -> str:
    """The table, and the settings for either aim."""
    lines = [f"{'workers':>8}{'threads':>9}{'texts/s':>10}{'tokens/s':>11}{'alone p50 ms':>14}{'alone p95 ms':>14}"]
    lines += [
        f"{m.layout.workers:>8}{m.layout.intra_op_threads:>9}{m.texts_per_second:>10.0f}{m.tokens_per_second:>11.0f}"
        f"{1e3 * m.latency_p50:>14.2f}{1e3 * m.latency_p95:>14.2f}"
        for m in measured
    ]
    most = max(measured, key=lambda m: m.tokens_per_second)
    quickest = min(measured, key=lambda m: m.latency_p50)
    for aim, best in (("throughput", most.layout), ("latency", quickest.layout)):
        lines.append(
            f"for {aim}: POLYHEAD_WORKERS={best.workers} POLYHEAD_INTRA_OP_THREADS={best.intra_op_threads}"
            f"   (--workers {best.workers} --intra-op-threads {best.intra_op_threads})"
        )
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    """The command line, described."""
    made = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.split("\n\n")[1] if __doc__ else None)
    add_artifact(made, "to measure")
    made.add_argument("--seconds", type=float, default=6.0, help="time for each layout (default: 6)")
    made.add_argument("--cores", type=int, help="cores to share out (default: those this process may use)")
    return made


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if not 0 < options.seconds < math.inf:
        made.error("--seconds must be above 0")
    if options.cores is not None and not 1 <= options.cores <= usable_cores():
        made.error(f"--cores must be from 1 to {usable_cores()}, those this process may use")
    model = chosen_artifact(options)
    try:
        artifact = Artifact.open(model)
        settings = read_settings(["--model", str(model)])
        measured = []
        for layout in layouts(options.cores or usable_cores()):
            sys.stderr.write(f"measuring {layout.workers} workers with {layout.intra_op_threads} threads each\n")
            measured.append(measure(artifact, layout, options.seconds, settings))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except (ArtifactError, ProviderUnavailable, SettingsError, OSError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 2 if isinstance(error, SettingsError) else 1
    sys.stdout.write(report(measured))
    return 0
