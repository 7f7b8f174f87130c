"""Quality and speed: of a changed network beside the first, and of vectors in fewer bits."""

import csv
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tqdm import tqdm

from benchmarks.lib.command import CannotMeasure, parser_of, positive, program, whole
from benchmarks.lib.report import Table, compare_seconds, draw, emit, processor_seconds
from benchmarks.lib.texts import make_batch, tokenize
from export.heads.corpus import Pairs, read_pairs
from export.pruning.driver import halve
from export.similarity import row_cosines
from model.artifact import GRAPH, Artifact, Manifest
from polyhead import Engine
from service.answers.vectors import quantize
from service.inference.openvino_backend import load_backend
from service.requests.schemas import VectorFormat

DEPTH = 10
QUERIES_AT_ONCE = 250
DEFINITIONS: Mapping[str, Any] = {"type": Path, "metavar": "CSV", "help": "word, definition; without a header"}

Vectors = NDArray[np.float32]
Numbers = NDArray[np.float64]
Scores = Callable[[Numbers, Numbers], Numbers]


@program
def formats() -> None:
    """What do vectors in fewer bits cost in quality? Spearman on rated pairs, and recall of definitions by their words.

    The documents are the definitions of the rows whose hashes are the smallest, the queries the words of the first of
    these. A word finds its definition if fewer than 10 others are at least as near.
    """
    parser = parser_of(formats.__doc__, "pairs", takes="a few minutes")
    parser.add_argument("artifact", type=Path, metavar="DIR", help="an embedder's artifact")
    parser.add_argument("--definitions", required=True, **DEFINITIONS)
    parser.add_argument("--documents", type=whole, default=10_000, help="definitions to search in")
    parser.add_argument("--queries", type=whole, default=2_000, help="words to find them by, not more than documents")
    arguments = parser.parse_args()
    manifest = Artifact.open(arguments.artifact).manifest
    if manifest.vector_ranges is None:
        raise CannotMeasure(f"{arguments.artifact} has no ranges for int8 vectors; export it again")
    rated = read_pairs(arguments.pairs)
    defined = read_definitions(arguments.definitions, arguments.documents)
    words, definitions = [word for word, _ in defined[: arguments.queries]], [definition for _, definition in defined]
    vectors = embed(arguments.artifact, [*rated.left, *rated.right, *words, *definitions])
    ends = np.cumsum([len(rated.left), len(rated.right), len(words)])
    table = Table("formats", "quality of vectors in fewer bits")
    for name, compared_by, scores in FORMS:
        numbers, size = in_form(vectors, name, manifest)
        left, right, queries, documents = np.split(numbers, ends)
        similarity = scores(left[:, np.newaxis], right[:, np.newaxis])[:, 0, 0]
        spearman = 100 * float(spearmanr(similarity, rated.ratings)[0])
        figures = {"spearman x 100": spearman, "recall@10 %": recall(queries, documents, scores)}
        table.add(**{"vectors": name, "compared by": compared_by, "bytes a vector": size, **figures})
    emit("quality formats", [table], pairs=len(rated.ratings), queries=len(words), documents=len(definitions))


def embed(directory: Path, texts: list[str]) -> Vectors:
    """Normalised vectors [texts, D], without the model's default prompt."""
    bar = tqdm(total=len(texts), desc=directory.name, unit="text", leave=False, disable=None)
    with Engine.load(directory) as engine, bar:
        if engine.manifest.task != "embedding":
            raise CannotMeasure(f"{directory} returns no vectors of texts: name an embedder's artifact")
        return engine.encode(texts, prompt="", normalize=True, progress=bar.update).embeddings


def inner_product(queries: Numbers, documents: Numbers) -> Numbers:
    """[..., Q, D] and [..., N, D] -> [..., Q, N], larger is nearer."""
    return np.asarray(queries @ np.swapaxes(documents, -1, -2))


def nearness(queries: Numbers, documents: Numbers) -> Numbers:
    """The squared Euclidean distance, negative; of bits the number that differ (Hamming)."""
    lengths = (queries**2).sum(-1)[..., :, np.newaxis] + (documents**2).sum(-1)[..., np.newaxis, :]
    return np.asarray(2 * inner_product(queries, documents) - lengths)


def in_form(vectors: Vectors, name: str, manifest: Manifest) -> tuple[Numbers, int]:
    """Vectors [N, D] as the numbers that are compared, and the bytes of one."""
    coded: NDArray[Any] = quantize(vectors, QUANTIZED[name], manifest) if name in QUANTIZED else vectors
    numbers = np.unpackbits(coded, axis=1) if name == "binary" else coded
    return numbers.astype(np.float64), coded.itemsize * coded.shape[1]


QUANTIZED: Mapping[str, VectorFormat] = {"int8": "int8", "uint8": "uint8", "binary": "ubinary"}
FORMS: tuple[tuple[str, str, Scores], ...] = (
    ("float32", "inner product", inner_product),
    ("int8", "inner product", inner_product),
    ("int8", "Euclidean distance", nearness),
    ("uint8", "inner product", inner_product),
    ("uint8", "Euclidean distance", nearness),
    ("binary", "Hamming distance", nearness),
)


def recall(queries: Numbers, documents: Numbers, scores: Scores) -> float:
    """Percent of the queries whose own document, the one of the same place, is among the nearest."""
    found = 0
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        part = scores(queries[start : start + QUERIES_AT_ONCE], documents)
        own = part[np.arange(len(part)), np.arange(start, start + len(part))]
        found += int(((part >= own[:, np.newaxis]).sum(axis=1) <= DEPTH).sum())
    return 100 * found / len(queries)


def read_definitions(path: Path, documents: int) -> list[tuple[str, str]]:
    """Word and definition of N rows, by the order of their hashes; of a word only the first.

    Raises `CannotMeasure` if the file cannot be read, or has fewer.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [(row[0], row[1]) for row in csv.reader(file, strict=True)]
    except (OSError, UnicodeDecodeError, csv.Error, IndexError) as error:
        raise CannotMeasure(f"{path} is no CSV of word,definition: {error}") from error
    rows.sort(key=lambda row: hashlib.sha256("\n".join(row).encode()).digest())
    chosen: dict[str, str] = {}
    for word, definition in rows:
        chosen.setdefault(word, definition)
    if len(chosen) < documents:
        raise CannotMeasure(f"{path} defines {len(chosen)} words, {documents} are wanted: give more of them")
    return list(chosen.items())[:documents]


BATCH_SIZES = (1, 8, 32)
NOT_CHOSEN_BY = "spearman, not chosen by"
WHAT_IS_DRAWN = (
    ("Cosine to the whole network", "cosine mean"),
    ("Spearman x 100", "spearman"),
    ("Recall@10, % of the whole network's", "recall %"),
    ("Times faster, batch 8", "x 8"),
)

Row = dict[str, Any]


@program
def changes() -> None:
    """What did a change of a network cost and bring: a precision, heads pruned, heads pruned and the rest healed?

    Quality: cosine to the first artifact's vectors over the sentences of rated pairs, each once; Spearman on the pairs,
    and on those that `--prune-heads --pairs` does not choose heads by; with `--definitions` also the recall of
    definitions by their words in an index that the first artifact filled, as a share of its own. Speed is CPU time on
    one thread, as a worker of the service runs, all artifacts alternately. The bound is 1 / (1 - s p): p
    is the share of heads removed, s the share of time that goes without any head, if an artifact without any is given.
    """
    parser = parser_of(changes.__doc__, "pairs", "plot", takes="about half a minute an artifact")
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="DIR", help="artifacts; the first is the reference")
    parser.add_argument("--healed", type=Path, nargs="+", default=[], metavar="DIR", help="healed ones, drawn apart")
    parser.add_argument("--definitions", **DEFINITIONS)
    parser.add_argument("--words", type=whole, default=3_000, help="words to find, among as many definitions")
    parser.add_argument("--seconds", type=positive, default=2.0, help="CPU time a batch size and artifact")
    parser.add_argument("--only", choices=("quality", "speed"), help="one of the two tables")
    arguments = parser.parse_args()
    directories = [*arguments.artifacts, *arguments.healed]
    artifacts = {directory: Artifact.open(directory) for directory in directories}  # refused before the first is run
    pairs = read_pairs(arguments.pairs)
    defined = read_definitions(arguments.definitions, arguments.words) if arguments.definitions else []
    first = Vectorized.of(partial(embed, directories[0]), pairs, defined)
    tables = []
    if arguments.only != "speed":
        quality = Table("quality", "quality on rated pairs, and size")
        for directory, artifact in artifacts.items():
            found = first if directory == directories[0] else Vectorized.of(partial(embed, directory), pairs, defined)
            cells = {
                "artifact": str(directory),
                "heads": sum(artifact.manifest.config.num_heads),
                "removed %": 100 * share_removed(artifact, artifacts[directories[0]]),
                "graph MB": artifact.manifest.files[GRAPH].size / 1e6,
            }
            quality.add(**cells, **found.figures(first))
        tables.append(quality)
    if arguments.only != "quality":
        tables.append(speed_table(artifacts, first.sentences, arguments.seconds))
    if arguments.plot:
        both = zip(*(table.rows for table in tables), strict=True)  # or the only one
        rows: list[Row] = [{column: cell for part in parts for column, cell in part.items()} for parts in both]
        lines = {"not healed": rows[: len(arguments.artifacts)]}
        if arguments.healed:
            lines["healed"] = [rows[0], *rows[len(arguments.artifacts) :]]
        panels = {title: {name: (of, column) for name, of in lines.items()} for title, column in WHAT_IS_DRAWN}
        draw(arguments.plot, "Healed and not healed", panels, "removed %", "heads removed, %")
    emit("quality artifacts", tables, pairs=len(pairs.ratings))


class Vectorized(NamedTuple):
    """A network's vectors of length 1: of the sentences of rated pairs, each once, of words and of definitions."""

    pairs: Pairs
    sentences: list[str]
    vectors: Vectors
    words: Vectors
    definitions: Vectors

    @classmethod
    def of(
        cls, embeds: Callable[[list[str]], Vectors], pairs: Pairs, defined: Sequence[tuple[str, str]]
    ) -> "Vectorized":
        """Embeds everything."""
        sentences = list(dict.fromkeys([*pairs.left, *pairs.right]))
        words, definitions = [word for word, _ in defined], [definition for _, definition in defined]
        found = np.split(embeds([*sentences, *words, *definitions]), np.cumsum([len(sentences), len(defined)]))
        return cls(pairs, sentences, *found)

    def figures(self, first: "Vectorized") -> Row:
        """Cells of the quality table, next to the first artifact, whose vectors have the same size."""
        chosen, _ = halve(len(self.pairs.ratings))
        others = sorted(set(range(len(self.pairs.ratings))) - set(chosen))
        spearman, other = self.spearman(), self.spearman(others)
        cosines = row_cosines(self.vectors, first.vectors)
        row = {
            "spearman": spearman,
            "lost": first.spearman() - spearman,
            NOT_CHOSEN_BY: other,
            "lost there": first.spearman(others) - other,
            "cosine mean": float(cosines.mean()),
            "first percentile": float(np.quantile(cosines, 0.01)),
            "worst": float(cosines.min()),
        }
        if len(self.words):
            documents = first.definitions.astype(np.float64)
            found, of_first = (recall(one.words.astype(np.float64), documents, inner_product) for one in (self, first))
            row["recall %"] = 100 * found / of_first
        return row

    def spearman(self, places: Sequence[int] | None = None) -> float:
        """Spearman x 100 of the cosines of all pairs, or of some of them, with their ratings."""
        place = {sentence: index for index, sentence in enumerate(self.sentences)}
        left, right = (self.vectors[[place[text] for text in side]] for side in (self.pairs.left, self.pairs.right))
        chosen = slice(None) if places is None else list(places)
        return 100 * float(spearmanr((left * right).sum(axis=1)[chosen], self.pairs.ratings[chosen])[0])


def share_removed(artifact: Artifact, whole: Artifact) -> float:
    """Share of the whole network's heads that an artifact lacks."""
    return 1 - sum(artifact.manifest.config.num_heads) / sum(whole.manifest.config.num_heads)


def speed_table(artifacts: Mapping[Path, Artifact], texts: list[str], seconds: float) -> Table:
    """Times every artifact against the first, with a batch a size, of texts evenly over the pairs."""
    first = next(iter(artifacts.values()))
    backends = {
        path: load_backend(artifact, workers=1, intra_op_threads=1, provider="cpu")
        for path, artifact in artifacts.items()
    }
    shares = {path: share_removed(artifact, first) for path, artifact in artifacts.items()}
    bare = next((path for path, share in shares.items() if share == 1), None)
    drawn = [texts[index * len(texts) // max(BATCH_SIZES)] for index in range(max(BATCH_SIZES))]
    rows = sorted(tokenize(first, drawn), key=len)
    cells: dict[Path, Row] = {path: {"artifact": str(path), "removed %": 100 * shares[path]} for path in artifacts}
    for size in BATCH_SIZES:
        begin = (len(rows) - size) // 2
        batch = make_batch(rows[begin : begin + size])
        ways = {str(path): partial(processor_seconds, partial(one.run, batch)) for path, one in backends.items()}
        rounds = max(5, int(seconds * len(ways) / sum(run() for run in ways.values())))
        timed = dict(zip(artifacts, compare_seconds(ways, rounds), strict=True))
        for path, row in timed.items():
            bound = None if bare is None else 1 / (1 - (1 - timed[bare]["times_first"]) * shares[path])
            cells[path] |= {f"ms {size}": row["cpu_ms"], f"x {size}": 1 / row["times_first"], f"bound {size}": bound}
    return Table("speed", "CPU ms of a run, times faster than the first, bound; by batch size", [*cells.values()])
