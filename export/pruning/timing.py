"""How fast the graph is along the pruning curve, and how fast it could be at most."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from export.checkpoint import Checkpoint
from export.exporter import write_graph
from export.graph import trace
from export.precision import Precision, to_precision
from export.pruning.latency import Timing, batches_of, compare
from export.pruning.removal import remove_heads
from export.tokens import TokenizedText
from model.artifact import GRAPH


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


def with_bounds(timings: dict[int, dict[int, Timing]], heads: int) -> dict[str, Any]:
    """Timings as JSON, beside the bound 1 / (1 - s p) with s the share of time that goes with all heads (Amdahl)."""
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
