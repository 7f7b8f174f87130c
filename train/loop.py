"""The training loop: every command's, read from top to bottom.

A run is a sequence of steps that the settings, the data and the seed decide. A checkpoint holds all that a step reads
(weights, the optimizer's moments, torch's random numbers, counts), so on a CPU a run that was stopped and resumed ends
in the same bits as one that was not.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import AdamW
from tqdm import tqdm

from train.curves import draw_curves
from train.data.batching import epoch_batches
from train.errors import Diverged, RunError
from train.folder import (
    CHECKPOINT,
    load_checkpoint,
    require_checkpoint,
    require_new,
    save_checkpoint,
    write_network,
    write_record,
)
from train.parallel import ALONE, Processes
from train.progress import Progress
from train.recipe import Recipe, parameter_groups
from train.record import describe_run
from train.settings import RunSettings, head_dropout_at, rate_at
from train.stopping import Stop

BETAS, EPSILON = (0.9, 0.98), 1e-8


def train(recipe: Recipe, settings: RunSettings, processes: Processes = ALONE) -> Progress:
    """Trains to the end, and leaves the best network in the output folder; of several processes the first writes.

    Raises:
        KeyboardInterrupt: it was stopped; a checkpoint is there.
        Diverged: the loss is no number any more.
        RunError: the folder cannot be used, or a checkpoint could not be written.
    """
    if processes.is_first:
        require_folder(settings)
    processes.wait()
    recipe.processes = processes
    torch.manual_seed(settings.seed + processes.rank)
    groups = parameter_groups(recipe, weight_decay=settings.weight_decay, embedding_rate=settings.embedding_rate)
    optimizer = AdamW(groups, lr=settings.learning_rate, betas=BETAS, eps=EPSILON, fused=True)
    progress = _resume(recipe, optimizer, settings) if settings.resume else Progress()
    epoch_of = lru_cache(1)(
        lambda epoch: epoch_batches(recipe.lengths, settings.batch_size, seed=settings.seed, epoch=epoch)
    )
    per_epoch = len(epoch_of(0))
    steps = max(1, round(settings.epochs * per_epoch))
    judged = {round(steps * (index + 1) / settings.evaluations) for index in range(settings.evaluations)}
    saved = time.monotonic()
    shown: dict[str, Any] = {"desc": recipe.command, "unit": "step", "disable": not processes.is_first}
    with Stop() as stop, tqdm(total=steps, initial=progress.step, **shown) as bar:
        if not progress.evaluations:
            _evaluate(recipe, settings, progress, bar)
        while progress.step < steps:
            began = time.monotonic()
            step = progress.step
            rate = settings.learning_rate * rate_at(step, steps, settings)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            recipe.encoder.set_dropout(hidden=settings.dropout, heads=head_dropout_at(step, steps, settings))
            places = epoch_of(step // per_epoch)[step % per_epoch]
            loss = _take_step(recipe, optimizer, places, settings, step=step, steps=steps)
            progress.take(loss, rate, steps=steps)
            progress.tokens += sum(recipe.lengths[place] for place in places)
            progress.seconds += time.monotonic() - began
            bar.set_postfix(loss=f"{loss:.4f}", rate=f"{rate:.1e}", tokens=f"{_speed(progress):,.0f}/s", refresh=False)
            bar.update()
            if progress.step in judged:
                _evaluate(recipe, settings, progress, bar)
            is_stopped = processes.any(stop.asked)
            if processes.is_first and (is_stopped or time.monotonic() - saved > settings.save_seconds):
                _save(recipe, optimizer, settings, progress)
                saved = time.monotonic()
            if is_stopped:
                raise KeyboardInterrupt
    if processes.is_first:
        _write_record(recipe, settings, progress, is_done=True)
        (settings.output / CHECKPOINT).unlink(missing_ok=True)
    return progress


def require_folder(settings: RunSettings) -> None:
    """Raises RunError where the run may not write into its folder, before anything costs time."""
    if settings.resume:
        require_checkpoint(settings.output)
    else:
        require_new(settings.output)


def _take_step(
    recipe: Recipe, optimizer: AdamW, places: Sequence[int], settings: RunSettings, *, step: int, steps: int
) -> float:
    """One step on one batch; returns its loss.

    Raises:
        Diverged: loss or gradient is no number; the weights are those of before.
    """
    recipe.module.train()
    with _precision(settings):
        loss = recipe.backward(places, step=step, share=step / steps)
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    recipe.processes.add_gradients(trained)
    length = float(torch.nn.utils.clip_grad_norm_(trained, settings.clip))
    if not (math.isfinite(loss) and math.isfinite(length)):
        raise Diverged(
            f"step {step + 1}: the loss is {loss}, its gradient {length} long, where a number was expected. Try a "
            f"lower --learning-rate (it is {settings.learning_rate:g}) or a longer --warm-up (it is "
            f"{settings.warm_up:g}); the best network so far is in {settings.output}"
        )
    optimizer.step()
    optimizer.zero_grad()
    return loss


@contextmanager
def _precision(settings: RunSettings) -> Iterator[None]:
    """Autocast where bfloat16 was asked for.

    On a CPU attention is then computed step by step: the backward of PyTorch 2.13's fused kernel takes four times as
    long in bfloat16 on texts of 14 and 40 tokens (32 texts, 12 heads; AVX-512 BF16).
    """
    device = torch.device(settings.device).type
    if settings.precision == "fp32":
        yield
        return
    with (
        torch.autocast(device, torch.bfloat16),
        sdpa_kernel(SDPBackend.MATH) if device == "cpu" else nullcontext(),
    ):
        yield


def _evaluate(recipe: Recipe, settings: RunSettings, progress: Progress, bar: Any) -> None:
    """Judges the network, and writes it where it is the best so far."""
    recipe.module.eval()
    figures = {name: round(value, 6) for name, value in recipe.evaluate().items()}
    progress.evaluations.append({"step": progress.step, **figures})
    shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    if recipe.processes.is_first:
        bar.write(f"step {progress.step}: {shown}")
    if progress.best is None or figures[recipe.score] > progress.best:
        progress.best, progress.best_step = figures[recipe.score], progress.step
        if recipe.processes.is_first:
            write_network(settings.output, recipe.network(), recipe.like)
    if recipe.processes.is_first:
        _write_record(recipe, settings, progress, is_done=False)


def _write_record(recipe: Recipe, settings: RunSettings, progress: Progress, *, is_done: bool) -> None:
    record = describe_run(recipe, settings, progress, is_done=is_done)
    write_record(settings.output, record, draw_curves(progress, recipe.command, recipe.score))


def _save(recipe: Recipe, optimizer: AdamW, settings: RunSettings, progress: Progress) -> None:
    tensors: dict[str, Tensor] = {f"module.{name}": tensor for name, tensor in recipe.module.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in moments.items()}
    tensors["random"] = torch.get_rng_state()
    state = {"settings": settings.record(), "recipe": recipe.described, "progress": progress.to_dict()}
    save_checkpoint(settings.output, tensors, state)


def _resume(recipe: Recipe, optimizer: AdamW, settings: RunSettings) -> Progress:
    """Brings everything to where the checkpoint was written.

    Raises:
        RunError: there is none, or it is of a run with other settings or data.
    """
    tensors, state = load_checkpoint(settings.output)
    _require_same(settings.record(), state["settings"], "settings")
    _require_same(dict(recipe.described), state["recipe"], "data")
    recipe.module.load_state_dict(_under("module.", tensors))
    described = optimizer.state_dict()
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _under("optimizer.", tensors).items():
        index, _, kind = name.partition(".")
        moments.setdefault(int(index), {})[kind] = tensor
    optimizer.load_state_dict({**described, "state": moments})
    torch.set_rng_state(tensors["random"])
    return Progress(**state["progress"])


def _require_same(found: dict[str, Any], saved: dict[str, Any], what: str) -> None:
    for name in sorted({*found, *saved}):
        if found.get(name) != saved.get(name):
            raise RunError(
                f"the checkpoint is of a run with other {what}: {name} was {saved.get(name)!r:.200} and is "
                f"{found.get(name)!r:.200}. Give the same as before, or begin in another folder"
            )


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _speed(progress: Progress) -> float:
    return progress.tokens / max(progress.seconds, 1e-9)
