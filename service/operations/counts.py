"""What an operation counts of a request: its texts and tokens, and its waits."""

from collections.abc import Sequence

from service.batching.decompositions import Decomposed
from service.batching.jobs import JobResult
from service.context import RequestContext
from service.observability.metrics import Metrics
from service.tokenization.tokenized import TokenizedInput


def observe_results(metrics: Metrics, results: Sequence[JobResult]) -> None:
    """Counts what a request waited for a worker, and what it waited for the model."""
    metrics.stages["queue"].observe(max(result.queue_seconds for result in results))
    metrics.stages["inference"].observe(max(result.inference_seconds for result in results))


def observe_decomposed(metrics: Metrics, found: Decomposed) -> None:
    """Counts what a request waited for its first run of explaining, and what it waited for the runs."""
    metrics.stages["queue"].observe(found.queue_seconds)
    metrics.stages["inference"].observe(found.inference_seconds)


def count(
    metrics: Metrics, context: RequestContext, tokenized: Sequence[TokenizedInput], *, attention_bytes: int | None
) -> None:
    """Counts an answered request: its texts and tokens, and its attention where it has any."""
    lengths = [len(item.input_ids) for item in tokenized]
    context.texts = len(lengths)
    context.tokens = sum(lengths)
    context.truncated = sum(item.truncated for item in tokenized)
    metrics.observe_texts(lengths, truncated=context.truncated)
    if attention_bytes is not None:
        metrics.observe_attention(attention_bytes)
