"""Times a pruned graph against the whole one: CPU time on one thread, as a worker of the service runs it.

The two run in turns, so that a drift of the machine changes both alike. On an idle machine CPU time on one thread is
the latency; on a busy one it is an estimate of it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from export.inputs import Inputs, graph_inputs
from export.runtime import Session
from export.tokens import TokenizedText, collate
from model.config import EncoderConfig

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


def compare(whole: Path, pruned: Path, inputs: Mapping[int, tuple[Inputs, Inputs]]) -> dict[int, Timing]:
    """Times two graphs.

    Args:
        whole: the graph with all heads.
        pruned: the other.
        inputs: by batch size, of either graph.
    """
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


def batches_of(texts: Sequence[TokenizedText], config: EncoderConfig) -> dict[int, Inputs]:
    """One batch of each size, of texts as they come: the first ones, padded."""
    return {size: _inputs(texts[:size], config) for size in BATCH_SIZES if size <= len(texts)}


def _inputs(texts: Sequence[TokenizedText], config: EncoderConfig) -> Inputs:
    batch = collate(texts)
    return graph_inputs(config, batch.input_ids.numpy(), batch.lengths.numpy())


def _seconds(session: Session, inputs: Inputs) -> float:
    begun = time.process_time()
    session.run(inputs)
    return time.process_time() - begun
