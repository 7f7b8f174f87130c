"""What does a precision cost in quality? Cosine to the first artifact's vectors, and Spearman on rated pairs.

Pairs: a CSV without a header, sentence, sentence, rating (the STS benchmark's format).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tqdm import tqdm

from benchmarks.lib.command import CannotMeasure, parser_of, program
from benchmarks.lib.report import Table, emit, labels
from benchmarks.lib.tokens import make_batch, tokenize
from export.heads.pairs import read_pairs
from export.similarity import row_cosines
from model.artifact import Artifact
from service.inference.onnx_backend import OnnxBackend

BATCH_TEXTS = 16
COLUMNS = ("artifact", "spearman x 100", "cosine mean", "cosine 1st percentile", "cosine worst")

Vectors = NDArray[np.float32]


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


def require_same_size(vectors: Vectors, first: Vectors, directory: Path) -> None:
    """Raises `CannotMeasure` where vectors [texts, D] are of another size than the first artifact's."""
    if vectors.shape != first.shape:
        raise CannotMeasure(
            f"{directory} has vectors of {vectors.shape[1]} dimensions, the first artifact of {first.shape[1]}"
        )


@program
def main() -> None:
    """Prints a row an artifact, then JSON."""
    parser = parser_of(__doc__, takes="a few seconds a thousand short pairs and artifact")
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="DIR", help="artifacts; the first is the reference")
    parser.add_argument("--pairs", type=Path, required=True, metavar="CSV", help="rated pairs of sentences")
    arguments = parser.parse_args()
    for directory in arguments.artifacts:
        Artifact.open(directory)  # said before the first one takes its time
    names, pairs = labels(arguments.artifacts), read_pairs(arguments.pairs)
    texts, table, first = [*pairs.left, *pairs.right], Table("quality", "quality on rated pairs", COLUMNS), None
    for directory in arguments.artifacts:
        vectors = embed(directory, texts)
        first = vectors if first is None else first
        require_same_size(vectors, first, directory)
        cosines = row_cosines(vectors, first)
        left, right = np.split(vectors, 2)
        spearman = 100 * float(spearmanr((left * right).sum(axis=1), pairs.ratings)[0])
        figures = (spearman, *(float(value) for value in (cosines.mean(), np.quantile(cosines, 0.01), cosines.min())))
        table.add(**dict(zip(COLUMNS, (names[directory], *figures), strict=True)))
    emit("quality pairs", [table], pairs=len(pairs.ratings))
