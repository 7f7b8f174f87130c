"""Texts explained through the network: what each input token adds to a similarity or to a logit.

Arrays still arrays; it knows neither HTTP nor JSON. A text's parts and its biases' part add up to its vector, e = sum_k
e_k, so a similarity is the sum over pairs of <a_j, b_k> / (|a| |b|), the biases' row and column included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.analysis.arrays import Float32Array, Float64Array
from service.answers.comparison import Explained, ExplainedTokens
from service.errors import InferenceFailed, Invalid
from service.inference.decomposer import TokenParts
from service.requests.network_plan import NetworkPlan
from service.runner import Runner
from service.tokenization.tokenized import TokenizedInput


@dataclass(frozen=True, slots=True)
class ExplainedScore:
    """What was found of a classifier's text, or pair, of n tokens.

    Attributes:
        labels: a name a logit.
        logits: [labels].
        contributions: [labels, n + 1], the last column the biases'; a row's sum is the logit.
        text: its tokens.
    """

    labels: tuple[str, ...]
    logits: Float32Array
    contributions: Float32Array
    text: ExplainedTokens


def compare_through_network(
    plan: NetworkPlan, texts: Sequence[TokenizedInput], found: Sequence[TokenParts], runner: Runner
) -> Explained:
    """The comparison of two texts with n and m tokens; contributions are [n + 1, m + 1], the biases' last.

    Raises:
        Invalid: a cosine with a vector of length 0.
        InferenceFailed: a vector is not finite.
    """
    first, second = (with_biases(parts)[:, : plan.request.dimensions] for parts in found)
    cells = first @ second.T
    if plan.request.similarity == "cosine":
        cells /= _length(first) * _length(second)
    a, b = (explained_tokens(text, parts, runner) for text, parts in zip(texts, found, strict=True))
    prompt, name = (plan.prompt.text, plan.prompt.name) if plan.prompt else (None, None)
    tokens = sum(len(text.input_ids) for text in texts)
    similarity, model = np.float32(cells.sum()), runner.manifest.model
    return Explained(similarity, cells.astype(np.float32), a, b, prompt, name, model, tokens, "network")


def explain_score(text: TokenizedInput, found: TokenParts, runner: Runner) -> ExplainedScore:
    """The logits of one text, or one pair, by its tokens.

    Raises:
        InferenceFailed: a logit is not finite.
    """
    cells = np.ascontiguousarray(with_biases(found).T, dtype=np.float32)
    return ExplainedScore(runner.manifest.labels, found.whole, cells, explained_tokens(text, found, runner))


def with_biases(found: TokenParts) -> Float64Array:
    """A text's parts [n + 1, D'], the last one the biases'; in float64, so that they add up to the output as it is.

    Raises:
        InferenceFailed: a part is not finite.
    """
    if not (np.isfinite(found.parts).all() and np.isfinite(found.whole).all()):
        raise InferenceFailed()
    parts = found.parts.astype(np.float64)
    return np.concatenate([parts, found.whole[np.newaxis] - parts.sum(axis=0, keepdims=True)])


def explained_tokens(text: TokenizedInput, found: TokenParts, runner: Runner) -> ExplainedTokens:
    """A text's tokens, and how much of each is its own after every layer."""
    tokens = runner.tokenizer.tokens(text)
    return ExplainedTokens(tokens, text.offsets or (), None, text.truncated, found.own_shares)


def _length(parts: Float64Array) -> float:
    length = float(np.linalg.norm(parts.sum(axis=0)))
    if not length:
        raise Invalid(
            "similarity: a text's vector is 0, its cosine with anything is undefined: ask for the dot product",
            param="similarity",
        )
    return length
