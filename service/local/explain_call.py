"""What a call from Python explains, from a plan to arrays; `service.operations` does the same for requests."""

import asyncio

from model.manifest import Manifest
from model.tasks.settings import Task
from service.answers.comparison import Explained, compare
from service.answers.network import ExplainedScore, compare_through_network, explain_score
from service.errors import WrongTask
from service.inference.decomposer import TokenParts
from service.requests.explain_plan import ExplainPlan
from service.requests.network_plan import NetworkPlan
from service.runner import Runner
from service.tokenization.tokenized import TokenizedInput


def require_task(manifest: Manifest, task: Task) -> None:
    """Refuses what is asked of a model for another task.

    Raises:
        WrongTask: naming the call to use.
    """
    if manifest.task != task:
        call = "explain_score" if manifest.task == "classification" else "explain"
        raise WrongTask(f"{manifest.model} is for {manifest.task.replace('_', '-')}, not for {task}: call {call}")


async def explain_pooling(runner: Runner, plan: ExplainPlan) -> Explained:
    """Two texts compared by their final token vectors."""
    texts = await runner.tokenize(plan.inputs, truncate=True)
    plan.check_texts(texts, runner.tokenizer.max_sequence_length)
    results = await runner.run(texts, **plan.run_options)
    return await asyncio.to_thread(compare, plan, texts, results, runner)


async def explain_through_network(runner: Runner, plan: NetworkPlan) -> Explained:
    """Two texts compared by their input tokens."""
    texts, found = await _decompose(runner, plan)
    return await asyncio.to_thread(compare_through_network, plan, texts, found, runner)


async def explain_logits(runner: Runner, plan: NetworkPlan) -> ExplainedScore:
    """A classifier's logits by the input tokens of one text or pair."""
    (text,), (found,) = await _decompose(runner, plan)
    return explain_score(text, found, runner)


async def _decompose(runner: Runner, plan: NetworkPlan) -> tuple[list[TokenizedInput], list[TokenParts]]:
    """The texts and their parts; texts of any length that the model takes."""
    texts = await runner.tokenize(plan.inputs, truncate=True)
    longest = runner.tokenizer.max_sequence_length
    plan.check_texts(texts, max_length=longest, max_explained=longest)
    decomposed = await runner.decompose(texts)
    return texts, decomposed.texts
