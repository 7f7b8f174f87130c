"""The encode path, from a validated request to the answer's bytes; every route that encodes goes through here.

Limits are checked in the order of what checking costs: number of inputs, tokens, bytes of the answer; then it runs.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from service.answers.answer import build_answer
from service.answers.packing import pack_base64, pack_safetensors
from service.answers.quantize import is_quantized, refuse_format
from service.answers.serialize import serialize_in_pieces
from service.context import RequestContext
from service.errors import Invalid, TooLarge
from service.observability.metrics import Metrics, Stage
from service.observability.stages import StageTimer
from service.operations.counts import count, observe_decomposed, observe_results
from service.requests.decomposition import check_explained
from service.requests.plan import EncodePlan, plan_encoding
from service.requests.schemas import EncodeRequest
from service.requests.selection import ARRAY_FLOATS
from service.requests.sizes import Sizes, check_sizes
from service.services import Services
from service.tokenization.inputs import (
    INPUTS,
    PAIRS,
    InputNames,
    Inputs,
    read_inputs,
    read_pairs,
    refuse_empty,
    refuse_long_texts,
)
from service.tokenization.tokenized import TokenizedInput
from service.tokenization.windows import all_windows
from service.wire import Piece

# Up to here building an answer is quicker than handing it to a thread; megabytes would hold up the event loop.
INLINE_FLOATS = 2**18

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """What came of a request, before it is written: each API writes it in its own shape.

    Attributes:
        answer: as `service.answers.answer.build_answer` gives it, arrays still arrays.
        sizes: of that answer.
    """

    answer: dict[str, Any]
    sizes: Sizes


async def encode(
    services: Services, context: RequestContext, request: EncodeRequest, *, as_safetensors: bool = False
) -> Sequence[Piece]:
    """Answers one encode request, as JSON unless told otherwise; in pieces, where that is megabytes.

    Raises:
        ServiceError: whatever keeps it from being answered.
    """
    _check_encoding(request, as_safetensors=as_safetensors)
    encoded = await run(services, context, request, as_safetensors=as_safetensors)
    with timed(services.metrics, "serialize"):
        return await _write(encoded.answer, request, encoded.sizes, as_safetensors=as_safetensors)


async def run(
    services: Services,
    context: RequestContext,
    request: EncodeRequest,
    *,
    names: InputNames = INPUTS,
    as_safetensors: bool = False,
    most_tokens: Sequence[int | None] | None = None,
) -> EncodeResult:
    """Encodes, up to the answer's arrays.

    Args:
        services: of the app.
        context: the request's own, for its deadline and its counts.
        request: what to encode.
        names: what the caller calls `inputs`, for errors.
        as_safetensors: how it will be written, which says what it will hold.
        most_tokens: of each text of a row; what is more is cut off.

    Raises:
        ServiceError: whatever keeps it from being encoded.
    """
    runner, settings, metrics = services.readiness.runner(), services.settings, services.metrics
    deadline = context.deadline(settings.request_timeout)
    inputs, names = read_request(request, names, settings.max_texts)
    plan = plan_encoding(request, inputs, runner.manifest)
    if is_quantized(request.encoding_format):
        refuse_format(plan, runner.manifest)
    refuse_long_texts(plan.inputs, settings.max_text_characters, names=names)
    with timed(metrics, "tokenize"):
        tokenized = await runner.tokenize(
            plan.inputs,
            truncate=request.truncate,
            pair_truncation=request.pair_truncation,
            names=names,
            ids_only=plan.needs_only_ids,
            deadline=deadline,
            most_tokens=most_tokens,
            in_windows=request.long_texts is not None,
        )
    return await _run(services, context, plan, tokenized, names=names, as_safetensors=as_safetensors)


async def run_prepared(
    services: Services,
    context: RequestContext,
    request: EncodeRequest,
    tokenized: Sequence[TokenizedInput],
    *,
    names: InputNames,
) -> EncodeResult:
    """As `run`, of texts that are tokenised; `request` says what to make of them.

    Raises:
        ServiceError: whatever keeps them from being encoded.
    """
    plan = plan_encoding(request, Inputs(texts=()), services.readiness.runner().manifest)
    return await _run(services, context, plan, tokenized, names=names, as_safetensors=False)


async def _run(
    services: Services,
    context: RequestContext,
    plan: EncodePlan,
    tokenized: Sequence[TokenizedInput],
    *,
    names: InputNames,
    as_safetensors: bool,
) -> EncodeResult:
    runner, settings, metrics = services.readiness.runner(), services.settings, services.metrics
    deadline = context.deadline(settings.request_timeout)
    refuse_empty(tokenized, names=names)
    lengths = [len(item.input_ids) for item in tokenized]
    check_tokens(lengths, settings.max_request_tokens, names=names)
    if plan.decomposition is not None:
        check_explained(lengths, settings.max_explained_tokens, names=names)
    attention = await offload(partial(plan.plan_attention, tokenized, runner.tokenizer), ARRAY_FLOATS * len(lengths))
    sizes = check_sizes(plan, lengths, attention, settings)
    context.hold_answer(
        services.answer_budget, sizes.held_bytes(plan.request.encoding_format, as_safetensors=as_safetensors)
    )
    span_tokens = None
    if plan.spans is not None:
        find = partial(plan.spans.find_tokens, tokenized, len(plan.prompt.text) if plan.prompt else 0)
        span_tokens = await offload(find, len(plan.spans) * max(lengths))
    rows = tokenized if plan.request.long_texts is None else all_windows(tokenized)
    results = await runner.run(rows, **plan.run_options, deadline=deadline)
    observe_results(metrics, results)
    parts = None
    if plan.decomposition is not None:
        decomposed = await runner.decompose(tokenized, deadline=deadline)
        observe_decomposed(metrics, decomposed)
        parts = decomposed.texts
    with timed(metrics, "postprocess"):
        build = partial(build_answer, plan, tokenized, results, attention, runner, span_tokens=span_tokens, parts=parts)
        answer = await offload(build, sizes.built_from)
    count(
        metrics, context, tokenized, attention_bytes=None if plan.request.attention is None else sizes.attention_bytes
    )
    return EncodeResult(answer, sizes)


def read_request(request: EncodeRequest, names: InputNames, max_texts: int) -> tuple[Inputs, InputNames]:
    """What a request wants encoded, and what its caller calls that.

    Raises:
        Invalid: neither inputs nor pairs, or both.
    """
    if request.pairs is None:
        if request.inputs is None and names is INPUTS:
            raise Invalid("inputs: Field required", param="inputs")
        return read_inputs(request.inputs, names=names, max_texts=max_texts), names
    if request.inputs is not None:
        raise Invalid("pairs: give either inputs or pairs", param="pairs")
    return read_pairs(request.pairs, max_texts=max_texts), PAIRS if names is INPUTS else names


def check_tokens(lengths: Sequence[int], limit: int, *, names: InputNames = INPUTS) -> None:
    """Refuses a request with more tokens than allowed.

    Raises:
        TooLarge: naming both numbers.
    """
    if (tokens := sum(lengths)) > limit:
        raise TooLarge(
            f"{names.all}: {tokens} tokens, at most {limit} a request are taken; send fewer inputs", param=names.field
        )


def timed(metrics: Metrics, stage: Stage) -> StageTimer:
    """Counts the time of a stage, failed or not, and notes it in the request's trace."""
    return StageTimer(metrics, stage)


async def offload(build: Callable[[], T], floats: int) -> T:
    """What `build` returns; on a thread where it touches many floats."""
    return build() if floats <= INLINE_FLOATS else await asyncio.to_thread(build)


async def _write(
    answer: dict[str, Any], request: EncodeRequest, sizes: Sizes, *, as_safetensors: bool
) -> Sequence[Piece]:
    if as_safetensors:
        is_half = request.encoding_format == "float16"
        return await offload(partial(pack_safetensors, answer, is_half=is_half), sizes.floats)
    if request.encoding_format == "base64":
        answer = await offload(partial(pack_base64, answer), sizes.floats)
    return await serialize_in_pieces(answer, floats=sizes.built_from)


def _check_encoding(request: EncodeRequest, *, as_safetensors: bool) -> None:
    if request.encoding_format == "float16" and not as_safetensors:
        raise Invalid(
            'encoding_format: "float16" is for Accept: application/vnd.safetensors; JSON takes the others',
            param="encoding_format",
        )
    if request.encoding_format == "base64" and as_safetensors:
        raise Invalid(
            "encoding_format: base64 is for JSON; a safetensors answer takes the others", param="encoding_format"
        )
