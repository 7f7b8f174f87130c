"""`POST /explain`, from a validated body to the answer's bytes, the way of `service.operations.encode`."""

from collections.abc import Sequence
from functools import partial

from service.answers.explained import explain_answer, run_explaining
from service.answers.packing import serialize_in_pieces
from service.context import RequestContext
from service.errors import TooLarge
from service.observability.stages import StageTimer
from service.operations.encode import check_tokens, count, observe_results, offload
from service.requests.attention import FLOAT_BYTES, plan_axes
from service.requests.explain import NAMES, SIDES, ExplainPlan, ExplainRequest, plan_explaining
from service.requests.schemas import AttentionRequest
from service.requests.sizes import Sizes
from service.runner import Runner
from service.services import Services
from service.settings import Settings
from service.tokenization.inputs import Inputs, refuse_long_texts
from service.tokenization.rows import TokenizedInput
from service.wire import Piece


async def explain(services: Services, context: RequestContext, request: ExplainRequest) -> list[Piece]:
    """Answers one request, as JSON; in pieces if it is megabytes."""
    runner, settings, metrics = services.runner(), services.settings, services.model.metrics
    deadline = context.deadline(settings.request_timeout)
    plan = plan_explaining(request, runner.manifest)
    sides = Inputs(texts=[text for text in (request.a, request.b) if text is not None])
    refuse_long_texts(sides, settings.max_text_characters, names=NAMES)
    with StageTimer(metrics, "tokenize"):
        texts = await runner.tokenize(plan.inputs, names=plan.names, truncate=request.truncate, deadline=deadline)
    plan.check_texts(texts, max_explained=settings.max_explained_tokens)
    check_tokens([len(text.input_ids) for text in texts], settings.max_request_tokens, names=plan.names)
    sizes = _sizes(plan, texts, runner, settings)
    context.hold_answer(services.model.answers, sizes.held_bytes("float", as_safetensors=False))
    axes = plan_axes(AttentionRequest(level=request.level), texts, runner.tokenizer)
    compute = await run_explaining(plan, texts, runner, observe=partial(observe_results, metrics), deadline=deadline)
    with StageTimer(metrics, "postprocess"):
        answer = await offload(lambda: explain_answer(compute(), request, texts, axes, runner), sizes.built_from)
    with StageTimer(metrics, "serialize"):
        pieces = await serialize_in_pieces(answer, floats=sizes.floats)
    count(metrics, context, texts, attention_bytes=sizes.attention_bytes or None)
    return pieces


def _sizes(plan: ExplainPlan, texts: Sequence[TokenizedInput], runner: Runner, settings: Settings) -> Sizes:
    """How large the answer will be; refuses what is too large before it runs."""
    lengths, selection = [len(text.input_ids) for text in texts], plan.selection
    if selection is None:  # through the network, whose parts are the input tokens and the biases
        lengths, config = [length + 1 for length in lengths], runner.config
        pairs = lengths[0] * lengths[1] if len(texts) == 2 else lengths[0] * config.output_size
        floats, work = pairs + sum(lengths) * config.num_layers, sum(lengths) * config.output_size
        sizes = Sizes(floats=floats, built_from=floats + work, attention_bytes=0, work_bytes=FLOAT_BYTES * work)
    else:
        if (work := selection.work_bytes(lengths)) > (limit := settings.max_attention_work_bytes):
            raise TooLarge(
                f"{work} bytes of attention weights would be computed, at most {limit} are allowed; send shorter texts",
                param=SIDES[lengths.index(max(lengths))],
            )
        floats = lengths[0] * lengths[1]
        built_from = max(floats, selection.build_floats(plan_axes(selection.options, texts, runner.tokenizer)))
        sizes = Sizes(floats, built_from, attention_bytes=FLOAT_BYTES * sum(lengths), work_bytes=work)
    if (size := floats * FLOAT_BYTES) > (limit := settings.max_attention_bytes):
        raise TooLarge(
            f"the answer would hold {size} bytes of contributions, at most {limit} are allowed; send shorter texts",
            param="a",
        )
    return sizes
