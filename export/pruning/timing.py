"""How fast the graph is along the pruning curve, and how fast it could be at most.

A pruned graph is timed against the whole one: CPU time on one thread, as a worker of the service runs it. They run in
turns, so that a drift of the machine changes both alike. On an idle machine CPU time on one thread is the latency; on a
busy one it is an estimate of it.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from export.checkpoint import Checkpoint
from export.exporter import write_graph
from export.graph import trace
from export.precision import to_precision
from export.pruning.removal import remove_heads
from export.runtime import Session
from export.texts import Inputs, TokenizedText, collate, graph_inputs
from model.artifact import GRAPH
from model.config import EncoderConfig
from model.config_parts import Precision

BATCH_SIZES = (1, 8, 32)
SECONDS = 0.6  # a graph and batch size: enough for a median of the slowest
FEWEST_RUNS, MOST_RUNS = 5, 60
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians over turns: CPU seconds of a run, of the pruned and of the whole graph, and how many times faster."""

    seconds: float
    whole_seconds: float
    speed: float


def time_steps(
    checkpoint: Checkpoint,
    order: Sequence[int],
    removals: Sequence[int],
    texts: Sequence[TokenizedText],
    precision: Precision,
) -> dict[int, dict[int, Timing]]:
    """Timings of every step by heads removed and batch size, each step's graph against the whole one."""
    timings: dict[int, dict[int, Timing]] = {}
    with tempfile.TemporaryDirectory() as directory:
        whole = _write(checkpoint, Path(directory) / "whole", precision)
        inputs = batches_of(texts, checkpoint.encoder.config)
        for removed in tqdm(removals, desc="timing", unit="graph", leave=False):
            pruned = replace(checkpoint, encoder=remove_heads(checkpoint.encoder, order[:removed]))
            other = _write(pruned, Path(directory) / "pruned", precision)
            own = batches_of(texts, pruned.encoder.config)
            timings[removed] = compare(whole, other, {size: (inputs[size], own[size]) for size in inputs})
    return timings


def _write(checkpoint: Checkpoint, directory: Path, precision: Precision) -> Path:
    directory.mkdir(exist_ok=True)
    write_graph(trace(to_precision(checkpoint, precision).traced), directory)
    return directory / GRAPH


def compare(whole: Path, pruned: Path, inputs: Mapping[int, tuple[Inputs, Inputs]]) -> dict[int, Timing]:
    """Times the graph with all heads and another, on inputs of either by batch size."""
    first, second = Session(whole, threads=1), Session(pruned, threads=1)
    timings = {}
    for size, (of_whole, of_pruned) in inputs.items():
        for _ in range(WARM_UP):
            first.run(of_whole)
            second.run(of_pruned)
        turns: list[tuple[float, float]] = []
        end = time.process_time() + 2 * SECONDS
        while len(turns) < FEWEST_RUNS or (time.process_time() < end and len(turns) < MOST_RUNS):
            turns.append((_seconds(first, of_whole), _seconds(second, of_pruned)))
        times = np.array(turns)
        ratios = times[:, 0] / times[:, 1]
        timings[size] = Timing(float(np.median(times[:, 1])), float(np.median(times[:, 0])), float(np.median(ratios)))
    return timings


def _seconds(session: Session, inputs: Inputs) -> float:
    begun = time.process_time()
    session.run(inputs)
    return time.process_time() - begun


def batches_of(texts: Sequence[TokenizedText], config: EncoderConfig) -> dict[int, Inputs]:
    """One batch of each size, of texts as they come: the first ones, padded."""
    return {size: _inputs(texts[:size], config) for size in BATCH_SIZES if size <= len(texts)}


def _inputs(texts: Sequence[TokenizedText], config: EncoderConfig) -> Inputs:
    batch = collate(texts)
    return graph_inputs(config, batch.input_ids.numpy(), batch.lengths.numpy())


def with_bounds(timings: dict[int, dict[int, Timing]], heads: int) -> dict[str, Any]:
    """Timings as JSON, next to the bound 1 / (1 - s p) with s the share of time that goes with all heads (Amdahl)."""
    shares = {size: max(0.0, 1 - 1 / timing.speed) for size, timing in timings[heads].items()}
    latency = [
        {
            "removed": removed,
            "share": round(removed / heads, 4),
            "batches": {
                str(size): {
                    "seconds": round(timing.seconds, 7),
                    "whole_seconds": round(timing.whole_seconds, 7),
                    "speed": round(timing.speed, 4),
                    "bound": round(1 / (1 - shares[size] * removed / heads), 4),
                }
                for size, timing in by_size.items()
            },
        }
        for removed, by_size in timings.items()
    ]
    return {"attention_share": {str(size): round(share, 4) for size, share in shares.items()}, "latency": latency}
