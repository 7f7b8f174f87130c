"""Numbers that describe each head on one text, so that a caller that wants them need not move matrices.

In the formulas a_ij is the weight of query i on key j, n the number of tokens, S the special ones, P the punctuation
and t_i a token's id. Means are over all n queries, special ones included, unless said otherwise.

    entropy             mean_i of -sum_j a_ij ln a_ij with 0 ln 0 = 0, in nats (Clark et al. 2019, without smoothing)
    normalized_entropy  entropy / the largest it could be, 0 to 1: mean_i ln of how many keys query i may see, of n
    confidence          mean_i of the largest a_ij with j not in S (Voita et al. 2019)
    signed_distance     sum_ij a_ij (i - j) / sum_ij a_ij, in tokens, above 0 looks back
    distance            sum_ij a_ij |i - j| / sum_ij a_ij, in tokens (Vig & Belinkov 2019)
    offset_previous     mean_i of a_i,i-1; the first row has no such key and adds 0 (Clark et al. 2019)
    offset_self         mean_i of a_i,i
    offset_next         mean_i of a_i,i+1; the last row adds 0
    special_mass        mean_i of sum over j in S of a_ij (Clark et al. 2019)
    special_to_special  the same, the mean over i in S only
    other_to_special    the same, the mean over i not in S only
    punctuation_mass    mean_i of sum over j in P of a_ij
    repeated_token      mean over i not in S that repeat of the sum of a_ij over j not in S, j != i, t_j = t_i

A statistic that a text does not define is None for every head, never 0 and never NaN, which JSON does not have:
normalized_entropy of one token, confidence and other_to_special where every token is special, special_to_special where
none is, repeated_token where none repeats. Mass on a kind of token that the text does not hold is defined, it is 0.

Behind them stand the patterns of the head report, which take more than one text's weights or more time.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from model.analysis.arrays import BoolArray, Float32Array, Float64Array, IntArray

STATISTICS = (
    "entropy",
    "normalized_entropy",
    "confidence",
    "signed_distance",
    "distance",
    "offset_previous",
    "offset_self",
    "offset_next",
    "special_mass",
    "special_to_special",
    "other_to_special",
    "punctuation_mass",
    "repeated_token",
)

# A softmax in half precision is off by some 0.003 a row; rows without their special keys or their tail lack far more.
_ROW_SUM_TOLERANCE = 1e-2


def head_statistics(
    weights: Float32Array,
    *,
    token_ids: IntArray,
    special: BoolArray,
    punctuation: BoolArray,
    causal: bool = False,
    reach: int | IntArray | None = None,
) -> dict[str, Float32Array | None]:
    """Every one of `STATISTICS`, in that order, of each head of one layer on one text: [H], or None if undefined there.

    `weights` are [H, n, n], H = 0 with any n; of each token [n] its id, whether the tokenizer added it (`special`), and
    whether it is punctuation. In a `causal` network a query sees itself and the tokens before it only; `reach` is how
    many tokens away it sees, of all heads or of each [H], None for all.

    Raises:
        ValueError: rows do not sum to 1.
    """
    num_tokens = len(token_ids)
    weights = weights if len(weights) else np.zeros((0, num_tokens, num_tokens), dtype=np.float32)
    _require_whole_rows(weights)
    entropy, mass = row_entropy(weights).mean(axis=-1), mass_on(weights, special)
    positions = np.arange(num_tokens, dtype=np.float32)
    differences = positions[:, np.newaxis] - positions  # query position less key position
    statistics = {
        "entropy": entropy,
        "normalized_entropy": entropy / _largest_entropy(num_tokens, causal, reach) if num_tokens > 1 else None,
        "confidence": confidence(weights, special),
        "signed_distance": _mean_of(weights, differences),
        "distance": _mean_of(weights, np.abs(differences)),
        "offset_previous": offset_score(weights, -1),
        "offset_self": offset_score(weights, 0),
        "offset_next": offset_score(weights, 1),
        "special_mass": mass.mean(axis=-1),
        "special_to_special": mass[:, special].mean(axis=-1) if special.any() else None,
        "other_to_special": mass[:, ~special].mean(axis=-1) if not special.all() else None,
        "punctuation_mass": mass_on(weights, punctuation).mean(axis=-1),
        "repeated_token": repeated_token(weights, token_ids, special),
    }
    return {name: None if values is None else values.astype(np.float32) for name, values in statistics.items()}


def row_entropy(weights: Float32Array) -> Float64Array:
    """Entropy of each row in nats, [..., Q, K] -> [..., Q]."""
    logarithms = np.log(np.maximum(weights, np.finfo(np.float32).tiny))  # finite at 0, where the factor is 0
    entropy: Float64Array = 0.0 - np.vecdot(weights, logarithms).astype(np.float64)  # a negation would make -0 of 0
    return entropy


def _largest_entropy(num_tokens: int, causal: bool, reach: int | IntArray | None) -> Float64Array:
    """Mean entropy of rows that are uniform over the keys they may see, in nats; one, or one a head's reach."""
    before = np.arange(num_tokens)
    furthest = np.asarray(num_tokens if reach is None else reach)[..., np.newaxis]
    seen = 1 + np.minimum(before, furthest) + (0 if causal else np.minimum(before[::-1], furthest))
    largest: Float64Array = np.log(seen).mean(axis=-1)
    return np.maximum(largest, np.finfo(np.float64).tiny)  # of a reach of 0 it is 0, as its heads' entropy is


def confidence(weights: Float32Array, special: BoolArray) -> Float64Array | None:
    """Mean over queries of the largest weight on an ordinary key, [H, n, n] -> [H]; None where all are special."""
    if special.all():
        return None
    ordinary = weights * (~special).astype(np.float32)  # a 0 never wins; several times faster than picking columns
    mean: Float64Array = ordinary.max(axis=-1).mean(axis=-1, dtype=np.float64)
    return mean


def offset_score(weights: Float32Array, offset: int) -> Float64Array:
    """Mean over all n queries of the weight on the key `offset` places on, [H, n, n] -> [H]."""
    mass = weights.diagonal(offset, axis1=-2, axis2=-1).sum(axis=-1, dtype=np.float64)  # of none, 0, in a short text
    score: Float64Array = mass / weights.shape[-1]
    return score


def mass_on(weights: Float32Array, keys: BoolArray) -> Float64Array:
    """What each query gives to the chosen keys, [..., Q, K] -> [..., Q]."""
    return (weights @ keys.astype(np.float32)).astype(np.float64)


def repeated_token(weights: Float32Array, token_ids: IntArray, special: BoolArray) -> Float64Array | None:
    """Mean over the queries whose token stands elsewhere too of the mass on those places, [H, n, n] -> [H].

    Special tokens do not count: a pair's second [SEP] repeats the first, and heads that rest on [SEP] would pass for
    heads that match words.
    """
    ordinary = ~special
    repeats = (token_ids[:, np.newaxis] == token_ids) & ordinary[:, np.newaxis] & ordinary  # [n, n]
    np.fill_diagonal(repeats, False)
    repeating_queries = np.count_nonzero(repeats.any(axis=-1))
    if not repeating_queries:
        return None
    mass: Float64Array = np.vecdot(weights, repeats.astype(np.float32)).sum(axis=-1, dtype=np.float64)
    return mass / repeating_queries


def _mean_of(weights: Float32Array, values: Float32Array) -> Float64Array:
    """Mean of [n, n] values under each head's weights: rows in float32, their sum in float64."""
    total = np.vecdot(weights, values).sum(axis=-1, dtype=np.float64)
    mean: Float64Array = total / weights.sum(axis=(-2, -1), dtype=np.float64)
    return mean


def _require_whole_rows(weights: Float32Array) -> None:
    errors = np.abs(weights.sum(axis=-1, dtype=np.float64) - 1)
    if not (errors <= _ROW_SUM_TOLERANCE).all():
        raise ValueError(
            f"a row's sum is off 1 by {errors.max():.3g}: statistics are defined on whole rows, before special tokens "
            "are dropped and before top-k"
        )


def jensen_shannon(weights: Float32Array) -> Float64Array:
    """KL(p || m) / 2 + KL(q || m) / 2 of every two heads' rows p and q, m their mean, in nats, [H, Q, K] -> [H, H].

    Mean over a text's queries: 0 for equal rows, ln 2 for rows without a key in common (Clark et al. 2019, section 6,
    who sum over queries and documents, so that theirs grow with the corpus).
    """
    entropies = row_entropy(weights)  # [H, Q]
    heads = len(weights)
    divergences = np.zeros((heads, heads))
    for head in range(heads - 1):  # JS(p, q) = H(m) - (H(p) + H(q)) / 2, one head against all after it
        middle = row_entropy((weights[head] + weights[head + 1 :]) * np.float32(0.5))
        between = (middle - (entropies[head] + entropies[head + 1 :]) / 2).mean(axis=-1)
        divergences[head, head + 1 :] = np.clip(between, 0.0, np.log(2.0))
    symmetric: Float64Array = divergences + divergences.T
    return symmetric


def sink(weights: Float32Array) -> Float64Array:
    """Mean over queries of the weight on the first key, [H, n, n] -> [H]."""
    mean: Float64Array = weights[..., 0].mean(axis=-1, dtype=np.float64)
    return mean


def offset_rate(weights: Float32Array, offset: int) -> Float64Array | None:
    """Share of rows whose largest weight is `offset` places on, [H, n, n] -> [H]; None where no row has such a key.

    Voita et al. 2019 call a head positional from 0.9. Of equal weights the first counts: uniform rows point to key 0.
    """
    rows = np.arange(weights.shape[-1])
    rows = rows[(rows + offset >= 0) & (rows + offset < len(rows))]
    if not len(rows):
        return None
    rate: Float64Array = (weights.argmax(axis=-1)[:, rows] == rows + offset).mean(axis=-1)
    return rate


FEWEST_ORDINARY = 5


def rare_token(weights: Float32Array, counts: IntArray, special: BoolArray) -> Float64Array | None:
    """Share of ordinary queries that look most at the text's rarest ordinary token, [H, n, n] -> [H].

    As Voita et al. 2019 do. `counts` [n] are how often each token's id occurs in the corpus. None where the text has no
    single rarest token, or so few tokens that chance is high.
    """
    places = np.flatnonzero(~special)
    if len(places) < FEWEST_ORDINARY or np.count_nonzero(counts[places] == counts[places].min()) > 1:
        return None
    rarest = places[counts[places].argmin()]
    largest = (weights * (~special).astype(np.float32)).argmax(axis=-1)[:, places]  # [H, ordinary queries]
    rate: Float64Array = (largest == rarest).mean(axis=-1)
    return rate


def variability(first_positions: Float32Array) -> Float64Array:
    """How much each head's weights between the first N positions differ from text to text, [X, H, N, N] -> [X, H].

    sum_ij |a_ij(x) - mean_x a_ij| / (2 mean_x sum_ij a_ij(x)); the head's variability is the mean over the X texts
    (Vig & Belinkov 2019), 0 to 1, 0 for a head that does not look at content.
    """
    mean = first_positions.mean(axis=0, dtype=np.float64)  # [H, N, N]
    difference = np.abs(first_positions - mean).sum(axis=(-2, -1))
    mass: Float64Array = first_positions.sum(axis=(-2, -1), dtype=np.float64).mean(axis=0)  # [H]
    shares: Float64Array = difference / (2 * mass)
    return shares


DIRECTIONS = ("dependent_to_head", "head_to_dependent")


def predict_heads(weights: Float32Array, candidates: BoolArray) -> IntArray:
    """The head word that each head predicts for each word, [H, W, W] -> places [2, H, W], in the order of `DIRECTIONS`.

    Of a dependency parse (Clark et al. 2019, section 5): for a dependent d argmax_j a_dj, or argmax_i a_id, the word
    that looks at d most. `candidates` [W] are the words that may be predicted; d itself never is.
    """
    allowed = np.broadcast_to(candidates, weights.shape[-2:]).copy()
    np.fill_diagonal(allowed, False)
    looks_at = np.where(allowed, weights, -1.0).argmax(axis=-1)
    looked_at_by = np.where(allowed.T, weights, -1.0).argmax(axis=-2)
    return np.stack([looks_at, looked_at_by])


def best_offset(offsets: Iterable[int]) -> int:
    """The rule to beat: the most frequent distance from dependent to head word; of equals the nearer."""
    counted = Counter(offsets)
    return min(counted, key=lambda offset: (-counted[offset], abs(offset), -offset))
