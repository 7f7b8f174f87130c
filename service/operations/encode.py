"""The encode path, from a validated request to the answer's bytes; every route that encodes goes through here.

Limits are checked in the order of what checking costs: number of inputs, tokens, bytes of the answer; then it runs.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from service.answers.answer import build_answer
from service.answers.attention import add_blocks
from service.answers.packing import pack_base64, pack_safetensors, serialize_in_pieces
from service.batching.decompositions import Decomposed
from service.batching.jobs import JobResult
from service.context import RequestContext
from service.errors import Invalid, TooLarge
from service.observability.metrics import ModelMetrics
from service.observability.stages import StageTimer
from service.requests.attention import ARRAY_FLOATS, check_explained, count_block_floats
from service.requests.plan import EncodePlan, plan_encoding
from service.requests.roles import role_of_request
from service.requests.schemas import EncodeRequest
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
from service.tokenization.rows import TokenizedInput, all_windows
from service.wire import Piece

# Up to here building an answer is quicker than handing it to a thread; megabytes would hold up the event loop.
INLINE_FLOATS = 2**18
T = TypeVar("T")


class EncodeResult(NamedTuple):
    """A request's answer as `build_answer` gives it, arrays still arrays, its sizes, and the bytes held for it."""

    answer: dict[str, Any]
    sizes: Sizes
    held: int


async def encode(
    services: Services, context: RequestContext, request: EncodeRequest, *, as_safetensors: bool = False
) -> Sequence[Piece]:
    """Answers one encode request, as JSON unless told otherwise; in pieces if it is megabytes."""
    if request.encoding_format == "float16" and not as_safetensors:
        raise Invalid.at("encoding_format", '"float16" is for Accept: application/vnd.safetensors; JSON has the others')
    if request.encoding_format == "base64" and as_safetensors:
        raise Invalid.at("encoding_format", "base64 is for JSON; a safetensors answer has the others")
    encoded = await run(services, context, request, as_safetensors=as_safetensors)
    answer, sizes, _ = encoded
    with StageTimer(services.model.metrics, "serialize"):
        if as_safetensors:
            is_half = request.encoding_format == "float16"
            return await offload(partial(pack_safetensors, answer, is_half=is_half), sizes.floats)
        if request.encoding_format == "base64":
            answer = await offload(partial(pack_base64, answer), sizes.floats)
        pieces = await serialize_in_pieces(answer, floats=sizes.built_from)
    hold_written(services, context, encoded, pieces)
    return pieces


async def run(
    services: Services,
    context: RequestContext,
    request: EncodeRequest,
    *,
    names: InputNames = INPUTS,
    as_safetensors: bool = False,
    most_tokens: Sequence[int | None] | None = None,
    adds_blocks: bool = False,
    beside_bytes: int = 0,
) -> EncodeResult:
    """Encodes, up to the answer's arrays; errors call the inputs by `names`, texts are cut to `most_tokens` in a row.

    With `adds_blocks` attention across pairs gets its blocks beside whole maps. How the answer will be written, and
    what the caller puts into it (`beside_bytes`), says how much it will hold.
    """
    runner, settings, metrics = services.runner(), services.settings, services.model.metrics
    deadline = context.deadline(settings.request_timeout)
    inputs, names = read_request(request, names, settings.max_texts)
    request, role = role_of_request(request, inputs, runner.manifest, runner.tokenizer.num_special_tokens)
    plan = plan_encoding(request, inputs, runner.manifest)
    refuse_long_texts(plan.inputs, settings.max_text_characters, names=names)
    with StageTimer(metrics, "tokenize"):
        tokenized = await runner.tokenize(
            plan.inputs,
            truncate=request.truncate,
            pair_truncation=request.pair_truncation,
            names=names,
            ids_only=plan.needs_only_ids,
            deadline=deadline,
            most_tokens=role.most_tokens or most_tokens,
            overlap=plan.overlap,
            check_lengths=partial(check_tokens, limit=settings.max_request_tokens, names=names),
        )
    return await run_plan(
        services,
        context,
        plan,
        role.expand(tokenized),
        names=names,
        as_safetensors=as_safetensors,
        adds_blocks=adds_blocks,
        beside_bytes=beside_bytes,
    )


async def run_plan(
    services: Services,
    context: RequestContext,
    plan: EncodePlan,
    tokenized: Sequence[TokenizedInput],
    *,
    names: InputNames,
    as_safetensors: bool = False,
    adds_blocks: bool = False,
    beside_bytes: int,
) -> EncodeResult:
    """As `run`, of texts that are tokenised; `plan` says what to make of them."""
    runner, settings, metrics = services.runner(), services.settings, services.model.metrics
    deadline = context.deadline(settings.request_timeout)
    refuse_empty(tokenized, names=names)
    lengths = [len(item.input_ids) for item in tokenized]
    check_tokens(lengths, settings.max_request_tokens, names=names)
    if plan.decomposes:
        check_explained(lengths, settings.max_explained_tokens, names=names)
    axes = await offload(partial(plan.axes, tokenized, runner.tokenizer), plan.axes_floats(lengths))
    block_floats = count_block_floats(plan.selection, axes, tokenized) if adds_blocks and plan.selection else 0
    sizes = check_sizes(plan, lengths, axes, settings, block_floats=block_floats, beside_bytes=beside_bytes)
    held = sizes.held_bytes(plan.request.encoding_format, as_safetensors=as_safetensors) + beside_bytes
    context.hold_answer(services.model.answers, held)
    span_tokens = None
    if plan.spans is not None:
        find = partial(plan.spans.find_tokens, tokenized, len(plan.prompt.text))
        span_tokens = await offload(find, ARRAY_FLOATS * len(plan.spans))
    rows = tokenized if plan.request.long_texts is None else all_windows(tokenized)
    results = await runner.run(rows, **plan.run_options, deadline=deadline)
    decomposed = await runner.decompose(tokenized, deadline=deadline) if plan.decomposes else None
    observe_results(metrics, results, decomposed)
    parts = None if decomposed is None else decomposed.texts
    with StageTimer(metrics, "postprocess"):
        build = partial(build_answer, plan, tokenized, results, axes, runner, span_tokens=span_tokens, parts=parts)
        answer = await offload(build, sizes.built_from)
        if adds_blocks and plan.selection:
            answer["attention"] = await offload(partial(add_blocks, answer["attention"]), sizes.built_from)
    attention_bytes = None if plan.request.attention is None else sizes.attention_bytes
    count(metrics, context, tokenized, attention_bytes=attention_bytes)
    return EncodeResult(answer, sizes, held)


def hold_written(services: Services, context: RequestContext, encoded: EncodeResult, pieces: Sequence[Piece]) -> None:
    """Holds the bytes of an answer that were not counted before the model ran, such as texts of the request."""
    if (more := sum(map(len, pieces)) - encoded.held) > 0:
        context.add_answer(services.model.answers, more)


def read_request(request: EncodeRequest, names: InputNames, max_texts: int) -> tuple[Inputs, InputNames]:
    """What a request wants encoded, inputs or pairs, and what its caller calls that."""
    if request.pairs is None:
        if request.inputs is None and names is INPUTS:
            raise Invalid.at("inputs", "Field required")
        return read_inputs(request.inputs, names=names, max_texts=max_texts), names
    if request.inputs is not None:
        raise Invalid.at("pairs", "give either inputs or pairs")
    names = PAIRS if names is INPUTS else names
    return read_pairs(request.pairs, names=names, max_texts=max_texts), names


def check_tokens(lengths: Sequence[int], limit: int, *, names: InputNames = INPUTS) -> None:
    """Refuses (TooLarge) a request with more tokens than allowed."""
    if (tokens := sum(lengths)) > limit:
        raise TooLarge(
            f"{names.all}: {tokens} tokens, at most {limit} a request are taken; send fewer inputs", param=names.field
        )


async def offload(build: Callable[[], T], floats: int) -> T:
    """What `build` returns; on a thread where it touches many floats."""
    return build() if floats <= INLINE_FLOATS else await asyncio.to_thread(build)


def observe_results(metrics: ModelMetrics, results: Sequence[JobResult], decomposed: Decomposed | None = None) -> None:
    """Counts, once a request, what it waited for a worker and for the model, explaining it included."""
    queue = max((result.queue_seconds for result in results), default=0.0)
    inference = max((result.inference_seconds for result in results), default=0.0)
    if decomposed is not None:
        queue, inference = queue + decomposed.queue_seconds, inference + decomposed.inference_seconds
    metrics.stages["queue"].observe(queue)
    metrics.stages["inference"].observe(inference)


def count(
    metrics: ModelMetrics, context: RequestContext, tokenized: Sequence[TokenizedInput], *, attention_bytes: int | None
) -> None:
    """Counts an answered request: its texts and tokens, and its attention, if any."""
    lengths = [len(item.input_ids) for item in tokenized]
    context.texts = len(lengths)
    context.tokens = sum(lengths)
    context.truncated = sum(item.truncated for item in tokenized)
    metrics.observe_texts(lengths, truncated=context.truncated, attention_bytes=attention_bytes)
