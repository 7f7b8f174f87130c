"""The encode path, from a validated request to the answer's bytes; every route that encodes goes through here.

Limits are checked in the order of what checking costs: number of inputs, tokens, bytes of the answer; then it runs.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from service.answer import build_answer
from service.engine import Engine
from service.errors import Invalid, TooLarge
from service.exchange import Exchange
from service.inputs import Inputs, as_tokenized, read_inputs, refuse_truncated
from service.jobs import JobResult
from service.metrics import Metrics, Stage
from service.schemas import EncodeRequest
from service.selection import FLOAT_BYTES, AttentionSelection, check_attention_size, select_attention
from service.serialize import serialize
from service.services import Services
from service.settings import Settings
from service.tokenizer import TokenizedInput

# Up to here building an answer is quicker than handing it to a thread; megabytes would hold up the event loop.
INLINE_FLOATS = 2**18


async def encode(services: Services, exchange: Exchange, request: EncodeRequest) -> bytes:
    """Answers one encode request.

    Raises:
        ServiceError: whatever keeps it from being answered.
    """
    engine, settings, metrics = services.readiness.engine(), services.settings, services.metrics
    deadline = exchange.deadline(settings.request_timeout)
    inputs = read_inputs(request.inputs, max_texts=settings.max_texts)
    selection = _select(request, engine)
    dimensions = _check_dimensions(request, engine)
    with timed(metrics, "tokenize"):
        tokenized = await tokenize(engine, inputs, truncate=request.truncate)
    lengths = [len(item.input_ids) for item in tokenized]
    floats = _check_sizes(request, lengths, dimensions, selection, settings)
    results = await engine.run(
        tokenized,
        attention_layers=selection.computed_layers if selection else (),
        wants_tokens=request.output == "tokens",
        deadline=deadline,
    )
    observe_results(metrics, results)
    with timed(metrics, "postprocess"):
        build = partial(build_answer, request, tokenized, results, selection, engine)
        built = build() if floats <= INLINE_FLOATS else await asyncio.to_thread(build)
    with timed(metrics, "serialize"):
        body = await serialize(built, floats=floats)
    _count(metrics, exchange, tokenized, lengths, selection)
    return body


async def tokenize(engine: Engine, inputs: Inputs, *, truncate: bool) -> list[TokenizedInput]:
    """Inputs as the model sees them.

    Raises:
        Invalid, TooLarge: token ids that the model does not take, or a long text where cutting is not allowed.
    """
    max_length = engine.tokenizer.max_sequence_length
    if inputs.token_ids is not None:
        return as_tokenized(inputs.token_ids, vocab_size=engine.config.vocab_size, max_length=max_length)
    tokenized = await engine.tokenizer.encode(inputs.texts or ())
    if not truncate:
        refuse_truncated(tokenized, max_length=max_length)
    return tokenized


@contextmanager
def timed(metrics: Metrics, stage: Stage) -> Iterator[None]:
    """Counts the time of a stage, failed or not."""
    started = time.perf_counter()
    try:
        yield
    finally:
        metrics.stages[stage].observe(time.perf_counter() - started)


def observe_results(metrics: Metrics, results: Sequence[JobResult]) -> None:
    """Counts what a request waited for a worker, and what it waited for the model."""
    metrics.stages["queue"].observe(max(result.queue_seconds for result in results))
    metrics.stages["inference"].observe(max(result.inference_seconds for result in results))


def _select(request: EncodeRequest, engine: Engine) -> AttentionSelection | None:
    return select_attention(request.attention, engine.config.num_heads) if request.attention else None


def _check_dimensions(request: EncodeRequest, engine: Engine) -> int:
    config = engine.config
    size = config.embedding_size if request.output == "pooled" else config.hidden_size
    if request.dimensions is not None and request.dimensions > size:
        raise Invalid(f"dimensions: expected 1 to {size}, the size of the vectors", param="dimensions")
    return request.dimensions or size


def _check_sizes(
    request: EncodeRequest,
    lengths: Sequence[int],
    dimensions: int,
    selection: AttentionSelection | None,
    settings: Settings,
) -> int:
    """How many floats the answer will hold; refuses what is too large, before it runs."""
    tokens = sum(lengths)
    if tokens > settings.max_request_tokens:
        raise TooLarge(
            f"inputs: {tokens} tokens, at most {settings.max_request_tokens} a request are taken; send fewer inputs",
            param="inputs",
        )
    vectors = len(lengths) if request.output == "pooled" else tokens
    if (size := vectors * dimensions * FLOAT_BYTES) > settings.max_embedding_bytes:
        raise TooLarge(
            f"the answer would hold {size} bytes of embeddings, at most {settings.max_embedding_bytes} are allowed; "
            "send fewer inputs or ask for fewer dimensions",
            param="output",
        )
    if selection is not None:
        size += check_attention_size(
            selection,
            lengths,
            max_bytes=settings.max_attention_bytes,
            max_work_bytes=settings.max_attention_work_bytes,
        )
    return size // FLOAT_BYTES


def _count(
    metrics: Metrics,
    exchange: Exchange,
    tokenized: Sequence[TokenizedInput],
    lengths: Sequence[int],
    selection: AttentionSelection | None,
) -> None:
    exchange.texts = len(tokenized)
    exchange.tokens = sum(lengths)
    exchange.truncated = sum(item.truncated for item in tokenized)
    metrics.texts.inc(exchange.texts)
    metrics.tokens.inc(exchange.tokens)
    if exchange.truncated:
        metrics.truncated_texts.inc(exchange.truncated)
    if selection is not None:
        metrics.attention_requests.inc()
        metrics.attention_bytes.inc(selection.answer_bytes(lengths))
