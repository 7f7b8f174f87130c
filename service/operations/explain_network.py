"""`POST /explain` through the network, from a validated body to the answer's bytes.

Its runs have a queue of their own (`service.batching.decompositions`). It knows no HTTP.
"""

from collections.abc import Sequence

from service.answers.explained import score_answer, similarity_answer
from service.answers.network import compare_through_network, explain_score
from service.answers.serialize import serialize
from service.batching.decompositions import Decomposed
from service.context import RequestContext
from service.errors import TooLarge
from service.operations.counts import count, observe_decomposed
from service.operations.encode import check_tokens, offload, timed
from service.requests.axes import plan_axes
from service.requests.explain_schemas import ExplainRequest
from service.requests.network_plan import NetworkPlan, plan_network
from service.requests.selection import FLOAT_BYTES
from service.requests.sizes import Sizes
from service.runner import Runner
from service.services import Services
from service.settings import Settings
from service.tokenization.inputs import refuse_long_texts
from service.tokenization.tokenized import TokenizedInput


async def explain_through_network(services: Services, context: RequestContext, request: ExplainRequest) -> bytes:
    """Answers one request, as JSON.

    Raises:
        ServiceError: whatever keeps it from being answered.
    """
    runner, settings, metrics = services.readiness.runner(), services.settings, services.metrics
    deadline = context.deadline(settings.request_timeout)
    plan = plan_network(request, runner.manifest)
    refuse_long_texts(plan.inputs, settings.max_text_characters, names=plan.names)
    with timed(metrics, "tokenize"):
        texts = await runner.tokenize(plan.inputs, truncate=True, deadline=deadline)
    plan.check_texts(
        texts, max_length=runner.tokenizer.max_sequence_length, max_explained=settings.max_explained_tokens
    )
    check_tokens([len(text.input_ids) for text in texts], settings.max_request_tokens, names=plan.names)
    sizes = _check_sizes(texts, runner, settings)
    context.hold_answer(services.answer_budget, sizes.held_bytes("float", as_safetensors=False))
    found = await runner.decompose(texts, deadline=deadline)
    observe_decomposed(metrics, found)
    with timed(metrics, "postprocess"):
        answer = await offload(lambda: build_answer(plan, texts, found, runner), sizes.built_from)
    with timed(metrics, "serialize"):
        body = await serialize(answer, floats=sizes.floats)
    count(metrics, context, texts, attention_bytes=None)
    return body


def build_answer(
    plan: NetworkPlan, texts: Sequence[TokenizedInput], found: Decomposed, runner: Runner
) -> dict[str, object]:
    """The answer's own fields."""
    axes = plan_axes(plan.labels, texts, runner.tokenizer)
    if runner.manifest.task == "classification":
        explained = explain_score(texts[0], found.texts[0], runner)
        return score_answer(explained, plan.request, texts[0], axes[0], runner.manifest.model)
    return similarity_answer(compare_through_network(plan, texts, found.texts, runner), plan.request, texts, axes)


def _check_sizes(texts: Sequence[TokenizedInput], runner: Runner, settings: Settings) -> Sizes:
    """How large the answer will be; refuses what is too large before it runs."""
    lengths, config = [len(text.input_ids) + 1 for text in texts], runner.config
    pairs = lengths[0] * lengths[1] if len(texts) == 2 else lengths[0] * config.output_size
    floats = pairs + sum(lengths) * config.num_layers
    if (size := floats * FLOAT_BYTES) > settings.max_attention_bytes:
        raise TooLarge(
            f"the answer would hold {size} bytes of contributions, at most {settings.max_attention_bytes} are allowed; "
            "send shorter texts",
            param="a",
        )
    work = sum(lengths) * config.output_size
    return Sizes(floats=floats, built_from=floats + work, attention_bytes=0, work_bytes=FLOAT_BYTES * work)
