"""What do pruned heads cost and bring? Quality on rated pairs, size and speed of pruned artifacts against the whole.

Spearman on all pairs, and on those that `--prune-heads --pairs` does not choose heads by. Speed is CPU time on one
thread, as a worker of the service runs, each artifact in turns with the first; the bound is 1 / (1 - s p), p the share
of heads removed and s the share of time that goes without any head, where an artifact without any is given.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.lib.command import parser_of, positive, program
from benchmarks.lib.report import Table, emit, labels
from benchmarks.lib.tokens import make_batch, tokenize
from benchmarks.quality.pairs import embed, require_same_size
from export.heads.pairs import read_pairs
from export.pruning.material import halve
from export.similarity import row_cosines
from model.artifact import GRAPH, Artifact
from service.inference.backend import Batch
from service.inference.onnx_backend import OnnxBackend

BATCH_SIZES = (1, 8, 32)
COLUMNS = (
    "artifact",
    "heads",
    "removed %",
    "spearman",
    "lost",
    "spearman, not chosen by",
    "lost there",
    "cosine mean",
    "cosine worst",
    "graph MB",
)
SPEED_COLUMNS = ("artifact", "removed %", *(f"{what} {size}" for size in BATCH_SIZES for what in ("ms", "x", "bound")))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rated pairs: all left texts, then all right ones; ratings [pairs]."""

    texts: list[str]
    ratings: NDArray[np.float64]

    @classmethod
    def read(cls, path: Path) -> "Pairs":
        """Reads a CSV without a header: text, text, rating.

        Raises:
            SourceError: it cannot be read, or holds something else.
        """
        found = read_pairs(path)
        return cls([*found.left, *found.right], found.ratings)

    def not_chosen_by(self) -> list[int]:
        """Places of the pairs that an export does not choose heads by."""
        chosen, _ = halve(len(self.ratings))
        return sorted(set(range(len(self.ratings))) - set(chosen))

    def spearman(self, vectors: NDArray[np.float32], places: Sequence[int]) -> float:
        """Spearman x 100 of the cosines of some of the pairs with their ratings."""
        left, right = np.split(vectors, 2)
        return 100 * float(spearmanr((left * right).sum(axis=1)[places], self.ratings[places])[0])


class Quality:
    """Rows of the quality table, each against the first."""

    def __init__(self, pairs: Pairs, names: Mapping[Path, str]) -> None:
        self.table = Table("quality", "quality on rated pairs, and size", COLUMNS)
        self._pairs, self._names = pairs, names
        self._first: tuple[Artifact, NDArray[np.float32]] | None = None

    def add(self, directory: Path) -> None:
        """Embeds all texts with an artifact and compares."""
        artifact, vectors = Artifact.open(directory), embed(directory, self._pairs.texts)
        self._first = self._first or (artifact, vectors)
        first, whole = self._first
        require_same_size(vectors, whole, directory)
        cosines = row_cosines(vectors, whole)
        parts = (range(len(self._pairs.ratings)), self._pairs.not_chosen_by())
        points = [(self._pairs.spearman(vectors, part), self._pairs.spearman(whole, part)) for part in parts]
        scores = [value for after, before in points for value in (after, before - after)]
        described = [
            self._names[directory],
            sum(artifact.manifest.config.num_heads),
            100 * share_removed(artifact, first),
        ]
        size = artifact.manifest.files[GRAPH].size / 1e6
        cells = [*described, *scores, float(cosines.mean()), float(cosines.min()), size]
        self.table.add(**dict(zip(COLUMNS, cells, strict=True)))


def share_removed(artifact: Artifact, whole: Artifact) -> float:
    """Share of the whole network's heads that an artifact lacks."""
    return 1 - sum(artifact.manifest.config.num_heads) / sum(whole.manifest.config.num_heads)


def time_in_turns(whole: Path, other: Path, texts: list[str], seconds: float) -> dict[int, tuple[float, float]]:
    """By batch size: median CPU milliseconds of the other, and the median of how many times faster it is."""
    artifacts = [Artifact.open(directory) for directory in (whole, other)]
    backends = [OnnxBackend(artifact, intra_op_threads=1) for artifact in artifacts]
    found = {}
    for size, batch in batches_by_size(artifacts[0], texts).items():
        turns: list[list[float]] = []
        end = time.process_time() + seconds
        while len(turns) < 7 or time.process_time() < end:
            turns.append([cpu_seconds(backend, batch) for backend in backends])
        times = np.array(turns[2:])  # the first two warm up
        found[size] = (1000 * float(np.median(times[:, 1])), float(np.median(times[:, 0] / times[:, 1])))
    for backend in backends:
        backend.close()
    return found


def batches_by_size(artifact: Artifact, texts: list[str]) -> dict[int, Batch]:
    """One batch a size, of texts evenly over the pairs."""
    drawn = [texts[index * len(texts) // max(BATCH_SIZES)] for index in range(max(BATCH_SIZES))]
    rows = sorted(tokenize(artifact, drawn), key=len)
    middle = len(rows) // 2
    return {size: make_batch(rows[middle - size // 2 : middle - size // 2 + size]) for size in BATCH_SIZES}


def cpu_seconds(backend: OnnxBackend, batch: Batch) -> float:
    """CPU time of one run: on an idle machine its latency, on a busy one what that would be."""
    begun = time.process_time()
    backend.run(batch)
    return time.process_time() - begun


def speed_table(directories: list[Path], texts: list[str], seconds: float, names: Mapping[Path, str]) -> Table:
    """Times every artifact against the first."""
    whole = Artifact.open(directories[0])
    shares = {directory: share_removed(Artifact.open(directory), whole) for directory in directories}
    timings = {directory: time_in_turns(directories[0], directory, texts, seconds) for directory in directories}
    bare = next((directory for directory, share in shares.items() if share == 1), None)
    table = Table("speed", "CPU ms of a run, times faster than the first, bound; by batch size", SPEED_COLUMNS)
    for directory, by_size in timings.items():
        cells: dict[str, Any] = {"artifact": names[directory], "removed %": 100 * shares[directory]}
        for size, (milliseconds, faster) in by_size.items():
            heads_take = None if bare is None else 1 - 1 / timings[bare][size][1]
            bound = None if heads_take is None else 1 / (1 - heads_take * shares[directory])
            cells |= {f"ms {size}": milliseconds, f"x {size}": faster, f"bound {size}": bound}
        table.add(**cells)
    return table


@program
def main() -> None:
    """Prints both tables, then JSON."""
    parser = parser_of(__doc__, takes="about half a minute an artifact")
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="DIR", help="artifacts; the first is the whole one")
    parser.add_argument("--pairs", type=Path, required=True, metavar="CSV", help="rated pairs of sentences")
    parser.add_argument("--seconds", type=positive, default=2.0, help="CPU time a batch size and artifact")
    parser.add_argument("--only", choices=("quality", "speed"), help="one of the two tables")
    arguments = parser.parse_args()
    for directory in arguments.artifacts:
        Artifact.open(directory)  # said before the first one takes its time
    pairs = Pairs.read(arguments.pairs)
    tables, names = [], labels(arguments.artifacts)
    if arguments.only != "speed":
        quality = Quality(pairs, names)
        for directory in arguments.artifacts:
            quality.add(directory)
        tables.append(quality.table)
    if arguments.only != "quality":
        tables.append(speed_table(arguments.artifacts, pairs.texts, arguments.seconds, names))
    emit("quality pruning", tables, pairs=len(pairs.ratings))
