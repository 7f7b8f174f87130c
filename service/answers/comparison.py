"""Two texts compared: their similarity, what each pair of tokens adds to it, and where each text's vector came from.

Arrays still arrays; it knows neither HTTP nor JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from model.analysis.arrays import Float32Array, Float64Array
from model.analysis.contributions import contributions, token_shares
from model.analysis.rollout import saliency
from service.answers.vectors import make_vectors, token_vectors
from service.batching.jobs import JobResult
from service.errors import Invalid
from service.requests.explain_plan import ExplainPlan
from service.runner import Runner
from service.tokenization.tokenized import TokenizedInput


@dataclass(frozen=True, slots=True)
class ExplainedTokens:
    """One of the two texts, token by token, special tokens included.

    Attributes:
        tokens: as the model read them.
        offsets: [start, end) of each in the text, in characters; (0, 0) for special tokens.
        saliency: [n], the share of the vector that attention rollout traces back to each; sums to 1. None through the
            network.
        truncated: whether the text was longer and its end was cut off.
        own_shares: [L, n], how much of each token's vector is its own after each layer; None through pooling.
    """

    tokens: list[str]
    offsets: Sequence[tuple[int, int]]
    saliency: Float32Array | None
    truncated: bool
    own_shares: Float32Array | None = None

    def document(self) -> dict[str, Any]:
        """Its part of what `POST /explain` answers."""
        shown = {"saliency": self.saliency, "own_shares": self.own_shares}
        given = {name: values for name, values in shown.items() if values is not None}
        return {"tokens": self.tokens, "offsets": self.offsets, **given, "truncated": self.truncated}


@dataclass(frozen=True, slots=True)
class Explained:
    """What was found of two texts with n and m tokens.

    Attributes:
        similarity: of their pooled vectors.
        contributions: [n, m], the sum of its cells is the similarity; through the network [n + 1, m + 1], the last row
            and the last column the biases'.
        a: the first text.
        b: the second.
        prompt: what was put in front of both, or None.
        prompt_name: the model's name of that prompt, or None.
        model: what read them.
        num_tokens: of both.
        through: what contributions are of, final vectors (`pooling`) or input tokens (`network`).
    """

    similarity: np.float32
    contributions: Float32Array
    a: ExplainedTokens
    b: ExplainedTokens
    prompt: str | None
    prompt_name: str | None
    model: str
    num_tokens: int
    through: Literal["pooling", "network"] = "pooling"

    def document(self) -> dict[str, Any]:
        """What `POST /explain` answers, arrays still arrays."""
        named = {"prompt_name": self.prompt_name, "prompt": self.prompt}
        return {
            "model": self.model,
            "through": self.through,
            "similarity": self.similarity,
            "contributions": self.contributions,
            "a": self.a.document(),
            "b": self.b.document(),
            "usage": {"tokens": self.num_tokens},
            **{name: value for name, value in named.items() if value is not None},
        }


def compare(
    plan: ExplainPlan, texts: Sequence[TokenizedInput], results: Sequence[JobResult], runner: Runner
) -> Explained:
    """The comparison of two texts from what the model computed of each.

    Raises:
        Invalid: a cosine with a vector of length 0.
        InferenceFailed: a vector is not finite.
    """
    request, pooling = plan.request, runner.config.pooling
    pooled = make_vectors(
        np.stack([result.output for result in results]),
        dimensions=request.dimensions,
        normalize=request.similarity == "cosine",
    )
    hidden = [token_vectors(result)[:, : request.dimensions] for result in results]
    try:
        cells = contributions(*hidden, pooling=pooling, similarity=request.similarity)
    except ValueError as error:
        raise Invalid(f"similarity: {error}", param="similarity") from None
    first, second = (
        _explained_tokens(text, _saliency(result, token_shares(part, pooling)), runner)
        for text, result, part in zip(texts, results, hidden, strict=True)
    )
    prompt, name = (plan.prompt.text, plan.prompt.name) if plan.prompt else (None, None)
    tokens = sum(len(text.input_ids) for text in texts)
    similarity = np.float32(pooled[0] @ pooled[1])
    return Explained(similarity, cells, first, second, prompt, name, runner.manifest.model, tokens)


def _explained_tokens(text: TokenizedInput, shares: Float32Array, runner: Runner) -> ExplainedTokens:
    tokens, offsets = runner.tokenizer.tokens(text), text.offsets or ()
    return ExplainedTokens(tokens, offsets, np.ascontiguousarray(shares), text.truncated)


def _saliency(result: JobResult, shares: Float64Array) -> Float32Array:
    """[n], sums to 1; without any head nothing moves between tokens and the shares themselves are the answer."""
    layers = [result.attentions[layer] for layer in sorted(result.attentions)]
    if not any(len(weights) for weights in layers):
        return shares.astype(np.float32)
    return saliency(layers, shares)
