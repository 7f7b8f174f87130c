"""Two texts compared, and a classifier's logits taken apart: what each pair of tokens, or each token, adds.

Through pooling the tokens are the last layer's, through the network those of the input. There a text's parts and its
biases' part add up to its vector, e = sum_k e_k, so a similarity is the sum over pairs of <a_j, b_k> / (|a| |b|), the
biases' row and column included.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from model.analysis.arrays import Float64Array
from model.analysis.contributions import contributions, token_shares
from model.analysis.reductions import saliency as rollout_saliency
from service.answers.attention import open_maps, picture, sum_words, with_biases
from service.answers.vectors import make_vectors, token_vectors
from service.batching.decompositions import Decomposed
from service.batching.jobs import JobResult
from service.errors import Invalid
from service.inference.backend import Float32Array, TokenParts
from service.requests.attention import Axes, label_axes
from service.requests.explain import ExplainPlan, ExplainRequest
from service.requests.schemas import AttentionRequest
from service.runner import Runner
from service.tokenization.rows import TokenizedInput


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedTokens:
    """One of the two texts, token by token, special tokens included.

    Attributes:
        tokens: as the model read them.
        offsets: [start, end) of each in the text, in characters; (0, 0) for special tokens.
        saliency: [n], the share of the vector that attention rollout traces back to each; sums to 1. None through the
            network.
        truncated: whether the text was longer, and its end or start was cut off.
        own_shares: [L, n], how much of each token's vector is its own after each layer; None through pooling.
    """

    tokens: list[str]
    offsets: Sequence[tuple[int, int]]
    saliency: Float32Array | None
    truncated: bool
    own_shares: Float32Array | None = None

    def document(self) -> dict[str, Any]:
        """Its part of what `POST /explain` answers."""
        return _known(self, "tokens", "offsets", "saliency", "own_shares", "truncated")


@dataclass(frozen=True, slots=True, eq=False)
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

    def _repr_html_(self) -> str:
        """In a notebook: what each pair of tokens adds, blue above 0 and red below."""
        rows, columns = self.contributions.shape
        named = [[*text.tokens, "biases"][:count] for text, count in ((self.a, rows), (self.b, columns))]
        return picture([(f"Similarity {self.similarity:.4f}, by pairs of tokens", self.contributions)], *named)

    def document(self) -> dict[str, Any]:
        """What `POST /explain` answers, arrays still arrays."""
        found = _known(self, "model", "through", "similarity", "contributions")
        sides = {"a": self.a.document(), "b": self.b.document(), "usage": {"tokens": self.num_tokens}}
        return found | sides | _known(self, "prompt_name", "prompt")


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedScore:
    """What was found of a classifier's text, or pair, of n tokens.

    Attributes:
        labels: a name a logit.
        logits: [labels].
        contributions: [labels, n + 1], the last column the biases'; a row's sum is the logit.
        text: its tokens.
        token: whose label it is, its place in the text; None of a classifier of texts.
    """

    labels: tuple[str, ...]
    logits: Float32Array
    contributions: Float32Array
    text: ExplainedTokens
    token: int | None = None

    def document(self) -> dict[str, Any]:
        """The same under the names of `POST /explain`, arrays still arrays."""
        found = {"through": "network", **_known(self, "labels", "logits", "contributions")}
        return found | {"text": self.text.document()} | _known(self, "token")


def _known(one: Any, *names: str) -> dict[str, Any]:
    """Those of its attributes that are not None."""
    return {name: value for name in names if (value := getattr(one, name)) is not None}


async def run_explaining(
    plan: ExplainPlan,
    texts: Sequence[TokenizedInput],
    runner: Runner,
    *,
    observe: Callable[[Sequence[JobResult], Decomposed | None], object] = lambda *_: None,
    deadline: float | None = None,
) -> Callable[[], Explained | ExplainedScore]:
    """Runs the model, of which `observe` is told; returns what computes the result, for a thread."""
    if plan.selection is not None:
        results = await runner.run(texts, **plan.run_options, deadline=deadline)
        observe(results, None)
        return partial(compare, plan, texts, results, runner)
    place = plan.place(texts[0])
    found = await runner.decompose(texts, place=place, deadline=deadline)
    observe((), found)
    if runner.manifest.task == "embedding":
        return partial(compare_through_network, plan, texts, found.texts, runner)
    return partial(explain_score, texts[0], found.texts[0], runner, place)


def compare(
    plan: ExplainPlan, texts: Sequence[TokenizedInput], results: Sequence[JobResult], runner: Runner
) -> Explained:
    """Two texts compared by what the model computed of each; Invalid for a cosine with a vector of length 0."""
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
        raise Invalid.at("similarity", str(error)) from None
    sides = []
    for text, result, part in zip(texts, results, hidden, strict=True):
        layers = open_maps([result.attentions[layer] for layer in sorted(result.attentions)], plan.head_gates)
        saliency = np.ascontiguousarray(rollout_saliency(layers, token_shares(part, pooling)))
        sides.append(_explained_tokens(text, runner, saliency))
    return _explained(plan, np.float32(pooled[0] @ pooled[1]), cells, sides, runner)


def compare_through_network(
    plan: ExplainPlan, texts: Sequence[TokenizedInput], found: Sequence[TokenParts], runner: Runner
) -> Explained:
    """As `compare`, by the parts of the input tokens; contributions are [n + 1, m + 1], the biases' last."""
    first, second = (with_biases(parts)[:, : plan.request.dimensions] for parts in found)
    cells = first @ second.T
    if plan.request.similarity == "cosine":
        cells /= _length(first) * _length(second)
    sides = [_explained_tokens(text, runner, None, one.own_shares) for text, one in zip(texts, found, strict=True)]
    return _explained(plan, np.float32(cells.sum()), cells.astype(np.float32), sides, runner)


def explain_score(text: TokenizedInput, found: TokenParts, runner: Runner, place: int | None) -> ExplainedScore:
    """The logits of one text, one pair, or the token at `place`, by the text's tokens."""
    cells = np.ascontiguousarray(with_biases(found).T, dtype=np.float32)
    tokens = _explained_tokens(text, runner, None, found.own_shares)
    return ExplainedScore(runner.manifest.labels, found.whole, cells, tokens, place)


def _explained(
    plan: ExplainPlan,
    similarity: np.float32,
    cells: Float32Array,
    sides: Sequence[ExplainedTokens],
    runner: Runner,
) -> Explained:
    prompt = plan.prompt.document().get("prompt")
    tokens, (a, b) = sum(len(side.tokens) for side in sides), sides
    return Explained(similarity, cells, a, b, prompt, plan.prompt.name, runner.name, tokens, plan.request.through)


def _explained_tokens(
    text: TokenizedInput, runner: Runner, saliency: Float32Array | None, own_shares: Float32Array | None = None
) -> ExplainedTokens:
    return ExplainedTokens(runner.tokenizer.tokens(text), text.offsets or (), saliency, text.truncated, own_shares)


def _length(parts: Float64Array) -> float:
    length = float(np.linalg.norm(parts.sum(axis=0)))
    if not length:
        raise Invalid.at(
            "similarity", "a text's vector is 0, its cosine with anything is undefined: ask for the dot product"
        )
    return length


def explain_answer(
    explained: Explained | ExplainedScore,
    request: ExplainRequest,
    texts: Sequence[TokenizedInput],
    axes: Sequence[Axes],
    runner: Runner,
) -> dict[str, Any]:
    """What `POST /explain` answers, by tokens or words: of a classifier also the masses of its texts."""
    cells = explained.contributions
    if isinstance(explained, ExplainedScore):
        return {
            "model": runner.name,
            **replace(explained, token=_place(explained.token, axes[0])).document(),
            "contributions": np.ascontiguousarray(sum_words(cells, axes[0].words, 1)),
            "masses": _masses(cells, texts[0], axes[0]),
            "text": side_answer(explained.text, request, texts[0], axes[0]),
            "usage": {"tokens": len(texts[0].input_ids)},
        }
    for axis, text_axes in enumerate(axes):
        cells = sum_words(cells, text_axes.words, axis)
    table: dict[str, Any] = {"contributions": np.ascontiguousarray(cells)}
    if request.top_pairs is not None:
        pairs, rest = largest_pairs(cells, request.top_pairs)
        table = {"top_pairs": pairs, "left_out": rest}
    sides = zip((explained.a, explained.b), texts, axes, strict=True)
    a, b = (side_answer(side, request, text, text_axes) for side, text, text_axes in sides)
    whole = {name: value for name, value in explained.document().items() if name != "contributions"}
    return {**whole, **table, "a": a, "b": b}


def _place(token: int | None, axes: Axes) -> int | None:
    """A token's place among the columns: its own, or its word's."""
    if token is None or axes.words is None:
        return token
    return next(place for place, (_, end) in enumerate(axes.words) if token < end)


def side_answer(side: ExplainedTokens, request: ExplainRequest, text: TokenizedInput, axes: Axes) -> dict[str, Any]:
    """One text, by tokens or words."""
    answer = label_axes(AttentionRequest(level=request.level), axes, text, side.tokens)
    if side.saliency is not None:
        answer["saliency"] = sum_words(side.saliency, axes.words, 0)
    if side.own_shares is not None and axes.words is None:
        answer["own_shares"] = np.ascontiguousarray(side.own_shares)
    return {**answer, "truncated": side.truncated}


def largest_pairs(cells: Float32Array, count: int) -> tuple[list[dict[str, Any]], float]:
    """The largest cells of a table [n, m], largest first, and the sum of all others."""
    rows, columns = np.unravel_index(np.argsort(-cells, axis=None, kind="stable")[:count], cells.shape)
    values = cells[rows, columns]
    rest = float(cells.sum(dtype=np.float64) - values.sum(dtype=np.float64))
    pairs = zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True)
    return [{"a": a, "b": b, "contribution": value} for a, b, value in pairs], rest


def _masses(cells: Float32Array, text: TokenizedInput, axes: Axes) -> dict[str, Float32Array]:
    """Contributions [labels, n + 1] added up over special tokens, each text, and the biases."""
    segments = text.segments or [None if is_special else 0 for is_special in axes.special]
    places = {"special": None, "a": 0, "b": 1} if text.segments is not None else {"special": None, "text": 0}
    of_text = {name: [*(found == place for found in segments), False] for name, place in places.items()}
    masses = {name: cells[:, columns].sum(axis=1) for name, columns in of_text.items()}
    return {**masses, "biases": np.ascontiguousarray(cells[:, -1])}
