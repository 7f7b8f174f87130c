"""`POST /explain`, from a validated body to the answer's bytes.

Goes the way of `service.operations.encode`: limits are checked in the order of what checking costs, then both texts
run, in one batch where they fit. It knows no HTTP.
"""

from collections.abc import Sequence

from service.answers.comparison import compare
from service.answers.explained import similarity_answer
from service.answers.serialize import serialize
from service.context import RequestContext
from service.errors import TooLarge
from service.operations.counts import count, observe_results
from service.operations.encode import check_tokens, offload, timed
from service.operations.explain_network import explain_through_network
from service.requests.attention_schemas import AttentionRequest
from service.requests.axes import plan_axes
from service.requests.explain_plan import NAMES, SIDES, plan_explaining
from service.requests.explain_schemas import ExplainRequest
from service.requests.selection import FLOAT_BYTES, AttentionSelection
from service.requests.sizes import Sizes
from service.runner import Runner
from service.services import Services
from service.settings import Settings
from service.tokenization.inputs import refuse_long_texts
from service.tokenization.tokenized import TokenizedInput


async def explain(services: Services, context: RequestContext, request: ExplainRequest) -> bytes:
    """Answers one request, as JSON.

    Raises:
        ServiceError: whatever keeps it from being answered.
    """
    if request.through == "network":
        return await explain_through_network(services, context, request)
    runner, settings, metrics = services.readiness.runner(), services.settings, services.metrics
    deadline = context.deadline(settings.request_timeout)
    plan = plan_explaining(request, runner.manifest)
    refuse_long_texts(plan.inputs, settings.max_text_characters, names=NAMES)
    with timed(metrics, "tokenize"):
        texts = await runner.tokenize(plan.inputs, truncate=True, deadline=deadline)
    plan.check_texts(texts, runner.tokenizer.max_sequence_length)
    check_tokens([len(text.input_ids) for text in texts], settings.max_request_tokens, names=NAMES)
    sizes = _check_sizes(texts, plan.selection, runner, settings)
    context.hold_answer(services.answer_budget, sizes.held_bytes("float", as_safetensors=False))
    results = await runner.run(texts, **plan.run_options, deadline=deadline)
    observe_results(metrics, results)
    with timed(metrics, "postprocess"):
        explained = await offload(lambda: compare(plan, texts, results, runner), sizes.built_from)
    with timed(metrics, "serialize"):
        axes = plan_axes(AttentionRequest(level=request.level), texts, runner.tokenizer)
        body = await serialize(similarity_answer(explained, request, texts, axes), floats=sizes.floats)
    count(metrics, context, texts, attention_bytes=sizes.attention_bytes)
    return body


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
