"""Vectors as they are answered: of texts, tokens, spans and windows; cut, normalised, pooled, and put in fewer bits."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from model.artifact import Manifest
from service.batching.jobs import JobResult
from service.errors import InferenceFailed
from service.inference.backend import Float32Array, Int64Array
from service.requests.plan import is_quantized
from service.requests.schemas import EncodingFormat
from service.requests.spans import SpanTokens
from service.tokenization.rows import TokenizedInput, stitch

SMALLEST_LENGTH = 1e-12  # torch.nn.functional.normalize's eps: a zero vector stays zero
TEXTS_AT_ONCE, TURN_SECONDS = 32, 1e-4

T = TypeVar("T")


def in_turns(texts: Iterable[T]) -> Iterator[T]:
    """One text after another; other threads are let in after each group, where each text takes short calls of NumPy.

    NumPy releases the interpreter for less time than a waiting thread takes to wake up. The waiting threads, the event
    loop's among them, then begin to wait again. On the event loop itself, where small answers are built, nothing waits.
    """
    is_beside_loop = asyncio._get_running_loop() is None
    for number, text in enumerate(texts, 1):
        yield text
        if is_beside_loop and number % TEXTS_AT_ONCE == 0:
            time.sleep(TURN_SECONDS)


def make_vectors(vectors: Float32Array, *, dimensions: int | None, normalize: bool) -> Float32Array:
    """Vectors [n, D] as [n, dimensions], C-contiguous; normalised last, so that shortened ones have length 1 too."""
    vectors = vectors[:, :dimensions]
    squares = np.vecdot(vectors, vectors)
    if not np.isfinite(squares).all():  # JSON has no number for that
        raise InferenceFailed()
    if normalize:
        vectors = vectors / np.maximum(np.sqrt(squares), SMALLEST_LENGTH)[:, np.newaxis]
    return np.ascontiguousarray(vectors)


def token_vectors(result: JobResult) -> Float32Array:
    """One vector a token, [n, D], of a text that was run with `wants_tokens`."""
    if result.last_hidden_state is None:
        raise TypeError("last_hidden_state is missing from a result that asked for it")
    return result.last_hidden_state


def span_vectors(result: JobResult, spans: SpanTokens) -> Float32Array:
    """One vector a span, [spans, D]: the mean over its tokens.

    From running sums, so that a span costs the same however long it is; in float64, whose differences are exact enough.
    """
    vectors = token_vectors(result)[spans.places]
    sums = np.zeros((len(vectors) + 1, vectors.shape[1]))
    np.cumsum(vectors, axis=0, out=sums[1:])
    starts, ends = spans.ranges
    means: Float32Array = ((sums[ends] - sums[starts]) / (ends - starts)[:, np.newaxis]).astype(np.float32)
    return means


def join_windows(
    tokenized: Sequence[TokenizedInput], results: Sequence[JobResult], how: Literal["mean", "windows"]
) -> list[JobResult]:
    """One result a text: the mean of its windows' pooled vectors, or of each token the row of one window (`stitch`).

    The mean is weighted by the windows' tokens, special ones included, as vLLM does. With mean pooling it is the mean
    over the tokens of all windows.
    """
    rest, joined = iter(results), []
    for item in tokenized:
        first, *others = islice(rest, len(item.windows))
        outputs = [first.output, *(result.output for result in others)]
        if how == "windows":
            joined.append(replace(first, output=stitch(item, outputs)))
            continue
        tokens = [len(window.input_ids) for window in item.windows]
        mean = np.average(np.stack(outputs), axis=0, weights=tokens) if others else first.output
        joined.append(replace(first, output=mean.astype(np.float32)))
    return joined


def quantize(vectors: Float32Array, name: EncodingFormat, manifest: Manifest) -> NDArray[Any]:
    """Vectors [N, D] as int8 or uint8 [N, D], or as signs [N, D/8]: `ubinary` uint8, `binary` the same less 128.

    In formats of floats they stay as they are.
    """
    if not is_quantized(name):
        return vectors
    if name in {"binary", "ubinary"}:
        packed = np.packbits(vectors > 0, axis=-1)
        return packed if name == "ubinary" else (packed.astype(np.int16) - 128).astype(np.int8)
    ranges = manifest.vector_ranges
    assert ranges is not None  # noqa: S101 - checked before anything ran
    least, greatest = (np.array(side, dtype=np.float32) for side in (ranges.minimum, ranges.maximum))
    steps = (greatest - least) / np.float32(255)
    steps[steps == 0] = 1
    levels = np.clip(np.floor((vectors - least) / steps), 0, 255)
    return levels.astype(np.uint8) if name == "uint8" else (levels - 128).astype(np.int8)


PROTECTED = 1  # tokens at the start that keep their own vector: [CLS]


def pool_tokens(vectors: Float32Array, factor: float) -> tuple[Float32Array, Int64Array]:
    """Vectors [n, D] as fewer ones [m, D], all of length 1, and which of these each token is in, [n].

    Tokens whose vectors are alike share their mean, so that an index takes less room: Ward's hierarchical clustering on
    cosine distances, as PyLate's `pool_factor` and sentence-transformers' `HierarchicalTokenPooling` have it (Clavié et
    al. 2024). The first token keeps its vector, the others become one vector for each of `tokens // factor` clusters.
    """
    rest = vectors[PROTECTED:]
    wanted = max(int(len(rest) // factor), 1)
    if wanted >= len(rest):
        return vectors, np.arange(len(vectors))
    clusters = ward_clusters(np.clip(1 - rest @ rest.T, 0, 2).astype(np.float64), wanted)
    rows = np.concatenate([np.arange(PROTECTED), clusters + PROTECTED])
    sums = np.zeros((rows.max() + 1, vectors.shape[1]), dtype=np.float32)
    np.add.at(sums, rows, vectors)
    means = sums / np.bincount(rows)[:, np.newaxis].astype(np.float32)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return means / np.maximum(lengths, np.float32(SMALLEST_LENGTH)), rows


def ward_clusters(distances: NDArray[np.float64], most: int) -> Int64Array:
    """The cluster of each point, [n], numbered in the order of their first points.

    At most `most`, fewer where several merges are equally near. The symmetric distances [n, n] are overwritten.
    """
    merges = _ward_merges(distances)
    heights = np.sort([height for _, _, height in merges])
    limit = heights[len(merges) - most]
    parents = np.arange(len(distances))
    for one, other, height in merges:
        if height <= limit:
            parents[parents == parents[other]] = parents[one]
    _, first, numbers = np.unique(parents, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[numbers]


def _ward_merges(distances: NDArray[np.float64]) -> list[tuple[int, int, float]]:
    """Every merge as a point of each side and the squared height, by chains of nearest neighbours (Murtagh 1983).

    The squared distance of a cluster to the union of two others follows from theirs (Lance and Williams 1967).
    """
    count = len(distances)
    np.square(distances, out=distances)
    np.fill_diagonal(distances, np.inf)
    sizes = np.ones(count)
    chain: list[int] = []
    merges: list[tuple[int, int, float]] = []
    alive = np.ones(count, dtype=bool)
    while len(merges) < count - 1:
        if not chain:
            chain.append(int(alive.argmax()))
        while True:
            last = chain[-1]
            nearest = int(distances[last].argmin())
            if len(chain) > 1 and distances[last, chain[-2]] <= distances[last, nearest]:
                break
            chain.append(nearest)
        one, other = sorted((chain.pop(), chain.pop()))
        height = distances[one, other]
        merges.append((one, other, float(height)))
        both = sizes[one] + sizes[other]
        union = (sizes + sizes[one]) * distances[one] + (sizes + sizes[other]) * distances[other] - sizes * height
        union /= sizes + both
        union[[one, other]] = np.inf
        union[~alive] = np.inf
        distances[one] = distances[:, one] = union
        distances[other] = distances[:, other] = np.inf
        sizes[one], alive[other] = both, False
    return merges
