"""Scores of documents by their vectors, and labels by their scores. Arrays still arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model.manifest import Manifest
from model.tasks.settings import MultiVectorSettings
from service.inference.backend import Float32Array, Int64Array

Vectors = Float32Array | Sequence[Float32Array]
"""One array of all texts, or one a text."""

TokenIds = tuple[Sequence[Int64Array], Sequence[Int64Array]]
"""Of queries, and of documents."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """One document, as `Engine.rerank` returns it.

    Attributes:
        index: its place among the documents that were given.
        score: how well it fits the query.
        document: its text.
        attention: across the pair, with its blocks; None where none was asked for.
    """

    index: int
    score: float
    document: str
    attention: dict[str, Any] | None = None


def rank(
    scores: Float32Array, documents: Sequence[str], attention: Sequence[dict[str, Any]] | None, most: int | None
) -> list[Ranked]:
    """Documents by their scores, best first; no more than `most`."""
    return [
        Ranked(at, float(scores[at]), documents[at], attention[at] if attention else None) for at in best(scores, most)
    ]


def similarities(queries: Vectors, documents: Vectors, ids: TokenIds, manifest: Manifest) -> Float32Array:
    """One score a document, [N], each against its own query.

    Args:
        queries: of an embedder [D], of a multi-vector model [n, D'], of length 1.
        documents: the same.
        ids: of the tokens of each query and of each document; a multi-vector model leaves some out.
        manifest: of the model: an embedder's score is the cosine, a multi-vector model's MaxSim.
    """
    if not len(documents):
        return np.empty(0, dtype=np.float32)
    if manifest.task == "embedding":
        cosines: Float32Array = np.einsum("nd,nd->n", np.asarray(queries), np.asarray(documents)).clip(-1, 1)
        return cosines
    kept = _kept(queries, ids[0], "query", manifest), _kept(documents, ids[1], "document", manifest)
    return np.array([max_sim(*both) for both in zip(*kept, strict=True)], dtype=np.float32)


def max_sim(query: Float32Array, document: Float32Array) -> float:
    """The sum over a query's vectors [n, D'] of the largest product with a document's vectors [m, D'].

    Khattab and Zaharia 2020, equation 3.
    """
    return float((query @ document.T).max(axis=1).sum()) if len(document) else 0.0


def best(scores: Float32Array, most: int | None) -> list[int]:
    """Places of the best scores, best first, equal ones in their order; no more than `most`."""
    order: list[int] = np.argsort(-scores, kind="stable")[:most].tolist()
    return order


def labelled(scores: Float32Array, labels: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Every label with its score, best first, of each row of scores [N, labels]."""
    return [[{"score": float(row[at]), "label": labels[at]} for at in best(row, None)] for row in scores]


def _kept(vectors: Vectors, ids: Sequence[Int64Array], kind: str, manifest: Manifest) -> list[Float32Array]:
    """The vectors of each text that count in a score."""
    settings = manifest.config.task_settings
    if not isinstance(settings, MultiVectorSettings) or kind not in settings.skipped_in:
        return list(vectors)
    return [text[~np.isin(tokens, settings.skipped_ids)] for text, tokens in zip(vectors, ids, strict=True)]
