"""Two texts compared: their similarity, what each pair of tokens adds to it, and where each text's vector came from.

Goes the way of `service.operations.encode`: limits are checked in the order of what checking costs, then both texts
run, in one batch where they fit. It knows no HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model.analysis.arrays import Float32Array, Float64Array
from model.analysis.contributions import contributions, token_shares
from model.analysis.rollout import saliency
from service.answers.serialize import serialize
from service.answers.vectors import make_vectors, token_vectors
from service.batching.jobs import JobResult
from service.context import RequestContext
from service.errors import Invalid, TooLarge
from service.operations.encode import check_tokens, count, observe_results, offload, timed
from service.requests.attention_schemas import AttentionRequest
from service.requests.axes import plan_axes
from service.requests.explain_schemas import ExplainRequest
from service.requests.head_mask import read_head_mask
from service.requests.plan import Sizes, check_dimensions
from service.requests.prompts import with_prompt
from service.requests.selection import FLOAT_BYTES, AttentionSelection, select_attention
from service.runner import Runner
from service.services import Services
from service.settings import Settings
from service.tokenization.inputs import InputNames, Inputs, refuse_empty, refuse_long_texts, refuse_truncated
from service.tokenization.tokenized import TokenizedInput

SIDES = ("a", "b")
NAMES = InputNames(listed="", singles=SIDES)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found of two texts with n and m tokens.

    Attributes:
        similarity: of their pooled vectors.
        contributions: [n, m], the sum of its cells is the similarity.
        saliencies: [n] and [m], each sums to 1.
    """

    similarity: np.float32
    contributions: Float32Array
    saliencies: tuple[Float32Array, Float32Array]


async def explain(services: Services, context: RequestContext, request: ExplainRequest) -> bytes:
    """Answers one request, as JSON.

    Raises:
        ServiceError: whatever keeps it from being answered.
    """
    runner, settings, metrics = services.readiness.runner(), services.settings, services.metrics
    deadline = context.deadline(settings.request_timeout)
    _refuse_projection(runner)
    check_dimensions(request.dimensions, runner.config.hidden_size)
    selection = select_attention(AttentionRequest(reduce="rollout"), runner.config.num_heads)
    head_gates = read_head_mask(request.head_mask, runner.manifest)
    given = Inputs(texts=(request.a, request.b))
    prompt, inputs = with_prompt(runner.manifest.defaults, given, name=request.prompt_name, text=request.prompt)
    refuse_long_texts(inputs, settings.max_text_characters, names=NAMES)
    with timed(metrics, "tokenize"):
        texts = await runner.tokenize(inputs, truncate=True, deadline=deadline)
    refuse_empty(texts, names=NAMES)
    if not request.truncate:
        refuse_truncated(texts, names=NAMES, max_length=runner.tokenizer.max_sequence_length)
    lengths = [len(text.input_ids) for text in texts]
    check_tokens(lengths, settings.max_request_tokens, names=NAMES)
    sizes = _check_sizes(texts, selection, runner, settings)
    context.hold_answer(services.answer_budget, sizes.held_bytes("float", as_safetensors=False))
    results = await runner.run(
        texts, attention_layers=selection.computed_layers, wants_tokens=True, head_gates=head_gates, deadline=deadline
    )
    observe_results(metrics, results)
    with timed(metrics, "postprocess"):
        comparison = await offload(lambda: compare(request, results, runner), sizes.built_from)
    with timed(metrics, "serialize"):
        answer = _answer(comparison, texts, runner) | (prompt.document() if prompt else {})
        body = await serialize(answer, floats=sizes.floats)
    count(metrics, context, texts, attention_bytes=sizes.attention_bytes)
    return body


def compare(request: ExplainRequest, results: Sequence[JobResult], runner: Runner) -> Comparison:
    """The comparison of two texts from what the model computed of each.

    Raises:
        Invalid: a cosine with a vector of length 0.
        InferenceFailed: a vector is not finite.
    """
    pooled = make_vectors(
        np.stack([result.output for result in results]),
        dimensions=request.dimensions,
        normalize=request.similarity == "cosine",
    )
    hidden = [token_vectors(result)[:, : request.dimensions] for result in results]
    pooling = runner.config.pooling
    try:
        cells = contributions(*hidden, pooling=pooling, similarity=request.similarity)
    except ValueError as error:
        raise Invalid(f"similarity: {error}", param="similarity") from None
    first, second = (
        _saliency(result, token_shares(part, pooling)) for result, part in zip(results, hidden, strict=True)
    )
    return Comparison(np.float32(pooled[0] @ pooled[1]), cells, (first, second))


def _refuse_projection(runner: Runner) -> None:
    if runner.config.projection is not None:
        raise Invalid(
            f"this model projects its pooled vector to {runner.config.projection.size} dimensions; the similarity of "
            "what comes out is no sum over pairs of tokens, so it cannot be explained by one"
        )


def _check_sizes(
    texts: Sequence[TokenizedInput], selection: AttentionSelection, runner: Runner, settings: Settings
) -> Sizes:
    """How large the answer will be; refuses what is too large before it runs."""
    lengths = [len(text.input_ids) for text in texts]
    if (work := selection.work_bytes(lengths)) > (limit := settings.max_attention_work_bytes):
        raise TooLarge(
            f"{work} bytes of attention weights would be computed, at most {limit} are allowed; send shorter texts",
            param=SIDES[lengths.index(max(lengths))],
        )
    axes = plan_axes(selection.options, texts, runner.tokenizer)
    cells = lengths[0] * lengths[1]
    if (size := cells * FLOAT_BYTES) > settings.max_attention_bytes:
        raise TooLarge(
            f"the answer would hold {size} bytes of contributions, at most {settings.max_attention_bytes} are allowed; "
            "send shorter texts",
            param="a",
        )
    return Sizes(
        floats=cells,
        built_from=max(cells, selection.build_floats(axes)),
        attention_bytes=FLOAT_BYTES * sum(lengths),
        work_bytes=work,
    )


def _saliency(result: JobResult, shares: Float64Array) -> Float32Array:
    """[n], sums to 1; without any head nothing moves between tokens and the shares themselves are the answer."""
    layers = [result.attentions[layer] for layer in sorted(result.attentions)]
    if not any(len(weights) for weights in layers):
        return shares.astype(np.float32)
    return saliency(layers, shares)


def _answer(comparison: Comparison, texts: Sequence[TokenizedInput], runner: Runner) -> dict[str, Any]:
    sides = {
        side: {
            "tokens": runner.tokenizer.tokens(text),
            "offsets": text.offsets,
            "saliency": np.ascontiguousarray(shares),
            "truncated": text.truncated,
        }
        for side, text, shares in zip(SIDES, texts, comparison.saliencies, strict=True)
    }
    return {
        "model": runner.manifest.model,
        "similarity": comparison.similarity,
        "contributions": comparison.contributions,
        **sides,
        "usage": {"tokens": sum(len(text.input_ids) for text in texts)},
    }
