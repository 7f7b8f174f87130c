"""Scores of documents by their vectors, what a score is made of, and labels by their scores."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact import DOT, Manifest
from model.config_parts import MultiVectorSettings, ScoreActivation
from service.answers.vectors import in_turns
from service.errors import InferenceFailed
from service.inference.backend import Float32Array, Int64Array
from service.requests.zero_shot import ZeroShotPlan
from service.tokenization.rows import TokenizedInput

Vectors = Float32Array | Iterable[Float32Array]
"""One array of all texts, or one a text."""

Labelled = tuple[list[str], list[float]]
"""Labels and their scores, best first."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """One document, as `Engine.rerank` returns it.

    Attributes:
        index: its place among the documents that were given.
        score: how well it fits the query.
        document: its text.
        attention: across the pair, with its blocks; None if none was asked for.
    """

    index: int
    score: float
    document: str
    attention: dict[str, Any] | None = None


def rank(
    scores: Float32Array, documents: Sequence[str], attention: Sequence[dict[str, Any]] | None, most: int | None
) -> list[Ranked]:
    """Documents by their scores, best first; at most `most`."""
    return [
        Ranked(at, float(scores[at]), documents[at], attention[at] if attention else None) for at in best(scores, most)
    ]


def similarities(queries: Vectors, documents: Vectors, manifest: Manifest) -> Float32Array:
    """One score a document, [N], each against its own query: an embedder's similarity, a multi-vector model's MaxSim.

    Vectors are [D] of an embedder, [n, D'] of a multi-vector model, of the tokens that count; of length 1 unless the
    model compares by dot products.
    """
    if manifest.task != "embedding":
        return np.array([max_sim(*pair) for pair in in_turns(zip(queries, documents, strict=True))], dtype=np.float32)
    rows = np.asarray(documents)
    return compare("nd,nd->n", np.asarray(queries, rows.dtype).reshape(rows.shape), rows, manifest)


def hybrid_scores(
    answer: Mapping[str, Any], places: Sequence[int], queries: int, weights: Mapping[Any, float], manifest: Manifest
) -> Float32Array:
    """The weighted mean of the outputs' scores, [N], one a document (Chen et al. 2024, equations 1 to 4).

    The answer holds so many queries and then the documents; `places` are of each document's query.
    """
    found = np.zeros(len(places), dtype=np.float64)
    pairs = [(place, queries + at) for at, place in enumerate(places)]
    for name, weight in weights.items():
        if name == "dense":
            vectors = answer["embeddings"]
            found += weight * compare("nd,nd->n", vectors[places], vectors[queries:], manifest)
        elif name == "sparse":
            words = answer["sparse"]
            found += [weight * word_products(words[a], words[b]) for a, b in in_turns(pairs)]
        else:
            texts = answer["multi_vector"]
            found += [weight * max_sim(texts[a], texts[b]) / max(1, len(texts[a])) for a, b in in_turns(pairs)]
    return np.asarray(found / sum(weights.values()), dtype=np.float32)


def word_products(query: Mapping[str, Any], document: Mapping[str, Any]) -> float:
    """The sum over the words that both have of the product of their weights."""
    _, own, other = np.intersect1d(query["indices"], document["indices"], assume_unique=True, return_indices=True)
    return float(query["values"][own] @ document["values"][other])


def compare(axes: str, one: Float32Array, other: Float32Array, manifest: Manifest) -> Float32Array:
    """Products of vectors along `axes`; of vectors of length 1 they are cosines, and rounding leaves none beyond 1."""
    products: Float32Array = np.einsum(axes, one, other)
    return products if manifest.defaults.similarity == DOT else products.clip(-1, 1)


def counted(ids: Int64Array, role: str | None, manifest: Manifest) -> NDArray[np.bool_]:
    """Which tokens of a query or document count in a score of a multi-vector model, [n]; all of a text of no role."""
    settings = manifest.config.task_settings
    if not isinstance(settings, MultiVectorSettings) or role not in settings.skipped_in:
        return np.ones(len(ids), dtype=np.bool_)
    return ~np.isin(ids, settings.skipped_ids)


def counting(
    vectors: Iterable[Float32Array], tokenized: Iterable[TokenizedInput], role: str, manifest: Manifest
) -> Iterator[Float32Array]:
    """The vectors of each text's tokens that count."""
    for rows, item in zip(vectors, tokenized, strict=True):
        yield rows[counted(item.input_ids, role, manifest)]


def max_sim(query: Float32Array, document: Float32Array) -> float:
    """The sum over a query's vectors [n, D'] of the largest product with a document's vectors [m, D'].

    Khattab and Zaharia 2020, equation 3.
    """
    return float((query @ document.T).max(axis=1).sum()) if len(document) else 0.0


@dataclass(frozen=True, slots=True)
class MatchedText:
    """A text whose tokens are matched: vectors [n, D'] of length 1, and which tokens count in the score, [n]."""

    vectors: Float32Array
    tokens: Sequence[str]
    offsets: Sequence[tuple[int, int]]
    counts: NDArray[np.bool_]


def find_matches(query: MatchedText, document: MatchedText) -> list[dict[str, Any]]:
    """The document's token that each of the query's tokens finds, in the query's order: `max_sim` adds these up."""
    rows, columns = np.flatnonzero(query.counts), np.flatnonzero(document.counts)
    if not len(columns):
        return []
    products = query.vectors[rows] @ document.vectors[columns].T
    places = products.argmax(axis=1)
    similar = np.take_along_axis(products, places[:, np.newaxis], axis=1)[:, 0]
    return [
        {
            "query_token": query.tokens[row],
            "query_offsets": query.offsets[row],
            "token": document.tokens[column],
            "offsets": document.offsets[column],
            "similarity": similarity,
        }
        for row, column, similarity in zip(rows.tolist(), columns[places].tolist(), similar.tolist(), strict=True)
    ]


def best(scores: Float32Array, most: int | None) -> list[int]:
    """Places of the best scores, best first, equal ones in their order; at most `most`."""
    order: list[int] = np.argsort(-scores, kind="stable")[:most].tolist()
    return order


def labelled(scores: Float32Array, labels: Sequence[str], top_k: int | None = None) -> list[dict[str, Any]]:
    """Labels with their scores, best first, by scores [labels]; at most `top_k`."""
    return [{"score": float(scores[at]), "label": labels[at]} for at in best(scores, top_k)]


def activate(logits: Float32Array, activation: ScoreActivation) -> Float32Array:
    """Logits [..., labels] as scores; InferenceFailed if one is not finite."""
    if not np.isfinite(logits).all():
        raise InferenceFailed()
    if activation == "identity":
        return logits
    wide = logits.astype(np.float64)
    if activation == "sigmoid":
        scores = np.exp(-np.logaddexp(0.0, -wide))  # no overflow on either side
    else:
        exponentials = np.exp(wide - wide.max(axis=-1, keepdims=True))
        scores = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return scores.astype(np.float32)


def zero_shot_labels(plan: ZeroShotPlan, found: Float32Array) -> Iterator[Labelled]:
    """Labels of each text, best first, from the logits or the vectors that the plan's request is answered with.

    By entailment a score is its softmax over a text's hypotheses; or, each by itself, over entailment and
    contradiction, which is the first of the model's labels, or the last one if entailment is the first (as the pipeline
    of `transformers`).
    """
    texts = len(plan.texts)
    if plan.entailment is None:
        scores = (found[:texts] @ found[texts:].T).clip(-1, 1)
    else:
        logits = found.reshape(texts, len(plan.labels), found.shape[1])
        contradiction = -1 if plan.entailment == 0 else 0
        if plan.multi_label or len(plan.labels) == 1:
            scores = activate(logits[..., [plan.entailment, contradiction]], "softmax")[..., 0]
        else:
            scores = activate(logits[..., plan.entailment], "softmax")
    for row in scores:
        order = best(row, None)
        yield [plan.labels[at] for at in order], row[order].tolist()
