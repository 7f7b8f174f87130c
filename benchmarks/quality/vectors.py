"""Quality of vectors in fewer bits, and how quality is measured: vectors of texts, recall of definitions."""

import csv
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tqdm import tqdm

from benchmarks.lib.command import CannotMeasure, parser_of, program, whole
from benchmarks.lib.report import Table, emit
from benchmarks.lib.texts import make_batch, tokenize
from export.heads.corpus import read_pairs
from model.artifact import Artifact, Manifest
from service.answers.vectors import quantize
from service.inference.onnx_backend import OnnxBackend
from service.requests.schemas import VectorFormat

BATCH_TEXTS = 16
DEPTH = 10
QUERIES_AT_ONCE = 250

Vectors = NDArray[np.float32]
Numbers = NDArray[np.float64]
Scores = Callable[[Numbers, Numbers], Numbers]


@program
def formats() -> None:
    """What do vectors in fewer bits cost in quality? Spearman on rated pairs, and recall of definitions by their words.

    Pairs: a CSV without a header, sentence, sentence, rating (the STS benchmark's format). Definitions: a CSV without a
    header, word, definition. The documents are the definitions of the rows whose hashes are the smallest, the queries
    the words of the first of these. A word finds its definition if fewer than 10 others are at least as near.
    """
    parser = parser_of(formats.__doc__, "pairs", takes="a few minutes")
    parser.add_argument("artifact", type=Path, metavar="DIR", help="an embedder's artifact")
    parser.add_argument("--definitions", type=Path, required=True, metavar="CSV", help="words and their definitions")
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
    """Normalised vectors [texts, D], in batches of similar length."""
    artifact = Artifact.open(directory)
    rows = tokenize(artifact, texts)
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    backend = OnnxBackend(artifact, intra_op_threads=2)
    vectors = np.zeros((len(texts), artifact.manifest.config.embedding_size), np.float32)
    starts = range(0, len(order), BATCH_TEXTS)
    for start in tqdm(starts, desc=directory.name, unit="batch", leave=False, disable=None):
        chosen = order[start : start + BATCH_TEXTS]
        vectors[chosen] = backend.run(make_batch([rows[index] for index in chosen])).output
    backend.close()
    normalized: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normalized


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

    Raises:
        CannotMeasure: the file cannot be read, or has fewer.
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
        raise CannotMeasure(f"{path} defines {len(chosen)} words, {documents} are wanted: lower --documents")
    return list(chosen.items())[:documents]
