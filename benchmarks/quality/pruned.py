"""Quality and speed of networks that lost heads, and of healed ones: distilled after pruning."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.lib.command import new_file, parser_of, positive, program, whole
from benchmarks.lib.report import Table, emit, labels
from benchmarks.lib.texts import make_batch, tokenize
from benchmarks.quality.vectors import Vectors, embed, inner_product, read_definitions, recall, require_same_size
from export.heads.corpus import Pairs, read_pairs
from export.pruning.driver import halve
from export.pruning.picture import Line, Panel, draw_panels, plain
from export.similarity import row_cosines
from model.artifact import GRAPH, Artifact
from service.inference.backend import Batch
from service.inference.onnx_backend import OnnxBackend

BATCH_SIZES = (1, 8, 32)
QUALITY_COLUMNS = (
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
HEALED_BATCH_SIZE = 8
HEALING_COLUMNS = (
    "artifact",
    "heads",
    "removed %",
    "cosine mean",
    "first percentile",
    "worst",
    "spearman",
    "recall %",
    "x 8",
)
WHAT_IS_DRAWN = (
    ("Cosine to the whole network", "cosine mean"),
    ("Spearman x 100", "spearman"),
    (f"Times faster, batch {HEALED_BATCH_SIZE}", "x 8"),
)

Row = dict[str, Any]


@program
def pruning() -> None:
    """What do pruned heads cost and bring? Quality on rated pairs, size and speed of pruned artifacts.

    Spearman on all pairs, and on those that `--prune-heads --pairs` does not choose heads by. Speed is CPU time on one
    thread, as a worker of the service runs, each artifact alternately with the first; the bound is 1 / (1 - s p): p is
    the share of heads removed, s the share of time that goes without any head, if an artifact without any is given.
    """
    parser = parser_of(pruning.__doc__, takes="about half a minute an artifact")
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="DIR", help="artifacts; the first is the whole one")
    parser.add_argument("--pairs", type=Path, required=True, metavar="CSV", help="rated pairs of sentences")
    parser.add_argument("--seconds", type=positive, default=2.0, help="CPU time a batch size and artifact")
    parser.add_argument("--only", choices=("quality", "speed"), help="one of the two tables")
    arguments = parser.parse_args()
    for directory in arguments.artifacts:
        Artifact.open(directory)  # said before the first one takes its time
    pairs = RatedTexts.read(arguments.pairs)
    tables, names = [], labels(arguments.artifacts)
    if arguments.only != "speed":
        quality = Quality(pairs, names)
        for directory in arguments.artifacts:
            quality.add(directory)
        tables.append(quality.table)
    if arguments.only != "quality":
        tables.append(speed_table(arguments.artifacts, pairs.texts, arguments.seconds, names))
    emit("quality pruning", tables, pairs=len(pairs.ratings))


@program
def healing() -> None:
    """How near do healed networks come to the whole one, and what is left of quality and gained in speed?

    Cosine to the whole network's vectors over the sentences of rated pairs, each once; Spearman on the pairs; recall of
    definitions by their words in an index that the whole network filled, as a share of its own. Speed is CPU time of a
    batch of 8 on one thread, alternately with the whole. Pairs: a CSV without a header, sentence, sentence, rating (the
    STS benchmark's format). Definitions: a CSV without a header, word, definition.
    """
    parser = parser_of(healing.__doc__, takes="about a minute an artifact")
    parser.add_argument("whole", type=Path, metavar="DIR", help="artifact of the whole network")
    parser.add_argument("--pruned", type=Path, nargs="+", default=[], metavar="DIR", help="artifacts that lost heads")
    parser.add_argument("--healed", type=Path, nargs="+", required=True, metavar="DIR", help="healed artifacts")
    parser.add_argument("--pairs", type=Path, required=True, metavar="CSV", help="rated pairs of sentences")
    parser.add_argument("--definitions", type=Path, required=True, metavar="CSV", help="words and their definitions")
    parser.add_argument("--words", type=whole, default=3_000, help="words to find, among as many definitions")
    parser.add_argument("--seconds", type=positive, default=2.0, help="CPU time a batch size and artifact")
    parser.add_argument("--plot", type=new_file, metavar="SVG", help="picture of cosine, Spearman and speed")
    arguments = parser.parse_args()
    directories = [arguments.whole, *arguments.pruned, *arguments.healed]
    for directory in directories:
        Artifact.open(directory)  # said before the first one takes its time
    defined = read_definitions(arguments.definitions, arguments.words)
    measure = Measure.of(arguments.whole, read_pairs(arguments.pairs), defined, arguments.seconds)
    names, table = labels(directories), Table("healing", "healed networks next to the whole one", HEALING_COLUMNS)
    rows = [measure.row(directory, names[directory]) for directory in directories]
    for row in rows:
        table.add(**row)
    if arguments.plot:
        end = 1 + len(arguments.pruned)
        drawn = panels(rows[0], rows[1:end], rows[end:])
        arguments.plot.write_text(draw_panels("Healed and not healed", drawn), encoding="utf-8")
    emit("quality healing", [table], pairs=len(measure.pairs.ratings), own_recall=measure.own_recall)


@dataclass(frozen=True, slots=True)
class RatedTexts:
    """Rated pairs: all left texts, then all right ones; ratings [pairs]."""

    texts: list[str]
    ratings: NDArray[np.float64]

    @classmethod
    def read(cls, path: Path) -> "RatedTexts":
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

    def __init__(self, pairs: RatedTexts, names: Mapping[Path, str]) -> None:
        self.table = Table("quality", "quality on rated pairs, and size", QUALITY_COLUMNS)
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
        self.table.add(**dict(zip(QUALITY_COLUMNS, cells, strict=True)))


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


@dataclass(frozen=True, slots=True)
class Measure:
    """What every artifact is measured by: the whole network's vectors and what they are of."""

    whole: Path
    pairs: Pairs
    sentences: list[str]  # of the pairs, each once
    words: list[str]
    vectors: Vectors  # of the sentences
    definitions: Vectors
    own_recall: float
    seconds: float

    @classmethod
    def of(cls, whole: Path, pairs: Pairs, defined: Sequence[tuple[str, str]], seconds: float) -> "Measure":
        """Embeds with the whole network."""
        sentences = list(dict.fromkeys([*pairs.left, *pairs.right]))
        words = [word for word, _ in defined]
        vectors = embed(whole, [*sentences, *words, *(definition for _, definition in defined)])
        ends = (len(sentences), len(sentences) + len(words))
        of_sentences, of_words, definitions = np.split(vectors, ends)
        own_recall = recall(of_words.astype(np.float64), definitions.astype(np.float64), inner_product)
        return cls(whole, pairs, sentences, words, of_sentences, definitions, own_recall, seconds)

    def row(self, directory: Path, name: str) -> Row:
        """The cells of one artifact."""
        artifact = Artifact.open(directory)
        vectors, words = np.split(embed(directory, [*self.sentences, *self.words]), [len(self.sentences)])
        require_same_size(vectors, self.vectors, directory)
        cosines = row_cosines(vectors, self.vectors)
        found = recall(words.astype(np.float64), self.definitions.astype(np.float64), inner_product)
        faster = time_in_turns(self.whole, directory, self.sentences, self.seconds)[HEALED_BATCH_SIZE][1]
        figures = (float(cosines.mean()), float(np.quantile(cosines, 0.01)), float(cosines.min()))
        described = (name, sum(artifact.manifest.config.num_heads))
        removed = 100 * share_removed(artifact, Artifact.open(self.whole))
        cells = (*described, removed, *figures, self._spearman(vectors), 100 * found / self.own_recall, faster)
        return dict(zip(HEALING_COLUMNS, cells, strict=True))

    def _spearman(self, vectors: Vectors) -> float:
        place = {sentence: index for index, sentence in enumerate(self.sentences)}
        left, right = (vectors[[place[text] for text in side]] for side in (self.pairs.left, self.pairs.right))
        return 100 * float(spearmanr((left * right).sum(axis=1), self.pairs.ratings)[0])


def panels(whole: Row, pruned: Sequence[Row], healed: Sequence[Row]) -> list[Panel]:
    """A panel a figure: not healed and healed, against the share of heads removed, from the whole network on."""
    lines = (("not healed", "a", pruned), ("healed", "c", healed))
    return [
        Panel(
            title,
            "heads removed",
            [
                Line(name, plain((row["removed %"] / 100, row[column]) for row in (whole, *_by_share(rows))), kind)
                for name, kind, rows in lines
                if rows
            ],
            percent=True,
        )
        for title, column in WHAT_IS_DRAWN
    ]


def _by_share(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: float(row["removed %"]))
