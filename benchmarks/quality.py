"""What does a precision cost in quality? Cosine to the first artifact's vectors, and Spearman on rated pairs.

Pairs: a CSV without a header, sentence, sentence, rating (the STS benchmark's format).
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tokenizers import Tokenizer

from model.artifact import TOKENIZER, Artifact
from service.batching.jobs import Job, collate
from service.onnx_backend import OnnxBackend

BATCH_TEXTS = 16


def embed(directory: Path, texts: list[str]) -> NDArray[np.float32]:
    """Normalised vectors [texts, D], in batches of similar length."""
    artifact = Artifact.open(directory)
    tokenizer = Tokenizer.from_file(str(artifact.path(TOKENIZER)))
    tokenizer.enable_truncation(artifact.manifest.max_sequence_length)
    rows = [np.array(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    backend = OnnxBackend(artifact, intra_op_threads=2)
    vectors = np.zeros((len(texts), artifact.manifest.config.embedding_size), np.float32)
    for start in range(0, len(order), BATCH_TEXTS):
        chosen = order[start : start + BATCH_TEXTS]
        vectors[chosen] = backend.run(collate([Job(rows[index]) for index in chosen])).pooled
    normalized: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normalized


def main() -> None:
    """Prints a row an artifact, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="DIR", help="artifacts; the first is the reference")
    parser.add_argument("--pairs", type=Path, required=True, metavar="CSV", help="rated pairs of sentences")
    arguments = parser.parse_args()
    with arguments.pairs.open(newline="", encoding="utf-8") as file:
        pairs = list(csv.reader(file))
    texts = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    ratings = [float(pair[2]) for pair in pairs]
    reference: NDArray[np.float32] | None = None
    results = []
    print(f"{'artifact':<28}{'spearman':>10}{'cosine mean':>13}{'1st percentile':>16}{'worst':>9}")
    for directory in arguments.artifacts:
        vectors = embed(directory, texts)
        reference = vectors if reference is None else reference
        cosines = (vectors * reference).sum(axis=1)
        similarities = (vectors[: len(pairs)] * vectors[len(pairs) :]).sum(axis=1)
        spearman = 100 * float(spearmanr(similarities, ratings)[0])
        mean, low, worst = float(cosines.mean()), float(np.quantile(cosines, 0.01)), float(cosines.min())
        print(f"{directory.name:<28}{spearman:>10.2f}{mean:>13.5f}{low:>16.5f}{worst:>9.5f}")
        results.append(
            {"artifact": directory.name, "spearman": spearman, "mean": mean, "percentile_1": low, "worst": worst}
        )
    print(json.dumps({"benchmark": "quality", "pairs": len(pairs), "results": results}))


if __name__ == "__main__":
    main()
