"""The training loop of every command, read from top to bottom.

A checkpoint holds all that a step reads, and every step has a seed of its own: on a CPU a run that was stopped and
resumed ends in the same bits as one that was not.
"""

import math
import platform
import resource
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import version
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import AdamW
from tqdm import tqdm

from export.checkpoint import Checkpoint
from export.pruning.picture import Line, Panel, draw_panels, plain
from model.encoder import Encoder
from train.batching import epoch_batches
from train.errors import Diverged, RunError
from train.folder import complete_network, load_checkpoint, require_folder, save_checkpoint, write_network, write_record
from train.optimizer import make_optimizer
from train.parallel import ALONE, Processes, seed_of
from train.settings import CHECKPOINT, RunSettings, head_dropout_at, rate_at

CURVE_POINTS = 200  # of the losses
PACKAGES = ("polyhead", "torch", "tokenizers", "safetensors")
KIB = 1024


class Recipe(ABC):
    """What a command trains on what, and how the network is judged."""

    command: str  # name on the command line
    score: str  # figure of `evaluate` by which the best network is kept; larger is better
    encoder: Encoder  # the network
    module: nn.Module  # everything with parameters: the network and what else is trained
    like: Checkpoint  # the checkpoint whose tokenizer, length and defaults the network keeps
    lengths: Sequence[int]  # tokens of each example
    described: Mapping[str, Any] = {}  # for the record: data with hashes, what was done before training
    rate_factors: Mapping[str, float] = {}  # on the learning rate, by the first part of a parameter's name
    processes: Processes = ALONE  # which share every batch; the loop sets it

    @abstractmethod
    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """Adds the gradient of the mean loss of the examples at `places` to the parameters', and returns the loss.

        Of several processes each adds the part of its own examples, and returns the whole batch's loss. `step`, from 0,
        seeds random numbers; `share` is that of the run which is over.
        """

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Figures of the network as it stands, on examples that are not trained on."""

    def network(self) -> Encoder:
        """The network that is written and judged, as it stands."""
        return self.encoder

    def findings(self) -> dict[str, Any]:
        """What the record says of the network as it stands, besides its weights."""
        return {}

    def may_be_kept(self, share: float) -> bool:
        """Whether the network after this share of the run is what the command makes, and may be the best one."""
        del share
        return True


@dataclass(kw_only=True)
class Progress:
    """How far a run is and what it has measured: everything of a checkpoint that is no tensor."""

    step: int = 0  # steps taken
    seconds: float = 0.0  # that they took, over all sessions
    tokens: int = 0  # that they read
    best: float | None = None  # score so far; None before the first
    best_step: int = 0
    kept: dict[str, Any] = field(default_factory=dict)  # of the best network: its shape, and the recipe's findings
    losses: list[tuple[int, float, float]] = field(default_factory=list)  # step, mean since the last, learning rate
    evaluations: list[dict[str, float]] = field(default_factory=list)  # figures by name, with their step
    loss_sum: float = 0.0  # of the steps since the last point of `losses`
    loss_count: int = 0  # how many these are

    @property
    def tokens_per_second(self) -> float:
        """How fast the steps went so far."""
        return self.tokens / max(self.seconds, 1e-9)

    def take(self, loss: float, rate: float, *, steps: int) -> None:
        """Counts a step."""
        self.step += 1
        self.loss_sum += loss
        self.loss_count += 1
        if self.loss_count >= max(1, steps // CURVE_POINTS) or self.step == steps:
            self.losses.append((self.step, self.loss_sum / self.loss_count, rate))
            self.loss_sum, self.loss_count = 0.0, 0


def train(recipe: Recipe, settings: RunSettings, processes: Processes = ALONE) -> Progress:
    """Trains to the end, and leaves the best network in the output folder; of several processes the first writes.

    Raises:
        KeyboardInterrupt: it was stopped; a checkpoint is there.
        Diverged: the loss is no number any more.
        RunError: the folder cannot be used, or a checkpoint could not be written.
    """
    if processes.is_first:
        require_folder(settings.output, is_resumed=settings.resume)
        complete_network(settings.output)
    processes.wait()
    recipe.processes = processes
    optimizer = make_optimizer(recipe.module, recipe.encoder, recipe.rate_factors, settings)
    progress = _resume(recipe, optimizer, settings) if settings.resume else Progress()
    steps, batch_of = _batches(recipe, settings)
    judged = {round(steps * (index + 1) / settings.evaluations) for index in range(settings.evaluations)}
    saved = time.monotonic()
    shown: dict[str, Any] = {"desc": recipe.command, "unit": "step", "disable": not processes.is_first}
    with noted_endings() as endings, tqdm(total=steps, initial=progress.step, **shown) as bar:
        if not progress.evaluations:
            _evaluate(recipe, settings, progress, bar, steps=steps)
        while progress.step < steps:
            began = time.monotonic()
            step = progress.step
            rate = settings.learning_rate * rate_at(step, steps, settings)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            recipe.encoder.set_dropout(hidden=settings.dropout, heads=head_dropout_at(step, steps, settings))
            places = batch_of(step)
            loss = _take_step(recipe, optimizer, places, settings, step=step, steps=steps)
            progress.take(loss, rate, steps=steps)
            progress.tokens += sum(recipe.lengths[place] for place in places)
            progress.seconds += time.monotonic() - began
            bar.set_postfix(
                loss=f"{loss:.4f}", rate=f"{rate:.1e}", tokens=f"{progress.tokens_per_second:,.0f}/s", refresh=False
            )
            bar.update()
            if progress.step in judged:
                _evaluate(recipe, settings, progress, bar, steps=steps)
            is_stopped = processes.any(bool(endings))
            if processes.is_first and (is_stopped or time.monotonic() - saved > settings.save_seconds):
                _save(recipe, optimizer, settings, progress)
                saved = time.monotonic()
            if is_stopped:
                raise KeyboardInterrupt
    if processes.is_first:
        _write_record(recipe, settings, progress, is_done=True)
        (settings.output / CHECKPOINT).unlink(missing_ok=True)
    return progress


@contextmanager
def noted_endings() -> Iterator[list[int]]:
    """Lists the first SIGINT, SIGTERM or SIGHUP, so that the step under way ends whole; a second one interrupts."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            signal.default_int_handler(number, frame)
        noted.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _batches(recipe: Recipe, settings: RunSettings) -> tuple[int, Callable[[int], list[int]]]:
    """The number of steps, and a function that tells the places of a step's batch."""

    @lru_cache(1)
    def epoch_of(epoch: int) -> list[list[int]]:
        return epoch_batches(recipe.lengths, settings.batch_size, seed=settings.seed, epoch=epoch)

    per_epoch = len(epoch_of(0))
    steps = max(1, round(settings.epochs * per_epoch))

    def batch_of(step: int) -> list[int]:
        epoch, index = divmod(step, per_epoch)
        return epoch_of(epoch)[index]

    return steps, batch_of


def _take_step(
    recipe: Recipe, optimizer: AdamW, places: Sequence[int], settings: RunSettings, *, step: int, steps: int
) -> float:
    """One step on one batch; returns its loss. Where loss or gradient is no number, no weight has changed."""
    recipe.module.train()
    torch.manual_seed(seed_of(settings.seed, step, recipe.processes.rank))  # of what dropout leaves out
    with _precision(settings):
        loss = recipe.backward(places, step=step, share=step / steps)
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    recipe.processes.add_gradients(trained)
    length = float(torch.nn.utils.clip_grad_norm_(trained, settings.clip))
    if not (math.isfinite(loss) and math.isfinite(length)):
        raise _diverged(step + 1, f"the loss is {loss}, its gradient {length} long", settings)
    with _precision(settings):  # for the products of Muon
        optimizer.step()
    optimizer.zero_grad()
    return loss


def _diverged(step: int, what: str, settings: RunSettings) -> Diverged:
    return Diverged(
        f"step {step}: {what}, where a number was expected. Try a lower --learning-rate (it is "
        f"{settings.learning_rate:g}) or a longer --warm-up (it is {settings.warm_up:g}) in another --output: the best "
        f"network so far is in {settings.output}"
    )


@contextmanager
def _precision(settings: RunSettings) -> Iterator[None]:
    """Autocast where bfloat16 was asked for.

    On a CPU attention is then computed step by step: the backward of PyTorch 2.13's fused kernel takes four times as
    long in bfloat16 (texts of 14 and 40 tokens; AVX-512 BF16).
    """
    device = torch.device(settings.device).type
    if settings.precision == "fp32":
        yield
        return
    with torch.autocast(device, torch.bfloat16), sdpa_kernel(SDPBackend.MATH) if device == "cpu" else nullcontext():
        yield


def _evaluate(recipe: Recipe, settings: RunSettings, progress: Progress, bar: Any, *, steps: int) -> None:
    recipe.module.eval()
    figures = {name: round(value, 6) for name, value in recipe.evaluate().items()}
    shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    if not all(map(math.isfinite, figures.values())):
        raise _diverged(progress.step, f"of the held-out examples the network gives {shown}", settings)
    progress.evaluations.append({"step": progress.step, **figures})
    if recipe.processes.is_first:
        bar.write(f"step {progress.step}: {shown}")
    is_better = progress.best is None or figures[recipe.score] >= progress.best  # of equal ones the longer trained
    if is_better and recipe.may_be_kept(progress.step / steps):
        network = recipe.network()
        parameters = sum(parameter.numel() for parameter in network.parameters())
        shape = {"num_heads": list(network.config.num_heads), "parameters": parameters}
        progress.best, progress.best_step = figures[recipe.score], progress.step
        progress.kept = {"network": shape, **recipe.findings()}
        if recipe.processes.is_first:
            write_network(settings.output, network, recipe.like)
    if recipe.processes.is_first:
        _write_record(recipe, settings, progress, is_done=False)


def _save(recipe: Recipe, optimizer: AdamW, settings: RunSettings, progress: Progress) -> None:
    tensors: dict[str, Tensor] = {f"module.{name}": tensor for name, tensor in recipe.module.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in moments.items()}
    state = {"settings": settings.record(), "recipe": _described(recipe), "progress": asdict(progress)}
    save_checkpoint(settings.output, tensors, state)


def _resume(recipe: Recipe, optimizer: AdamW, settings: RunSettings) -> Progress:
    """Brings everything to where the checkpoint was written; refuses one of a run with other settings or data."""
    tensors, state = load_checkpoint(settings.output)
    _require_same(settings.record(), state["settings"], "settings")
    _require_same(_described(recipe), state["recipe"], "data")
    parameters: dict[str, Tensor] = {}
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        if part == "module":
            parameters[rest] = tensor
        else:
            index, _, kind = rest.partition(".")
            moments.setdefault(int(index), {})[kind] = tensor
    recipe.module.load_state_dict(parameters)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    return Progress(**state["progress"])


def _described(recipe: Recipe) -> dict[str, Any]:
    """What decides the result besides settings: the data, what was done before, and the network to begin with."""
    return {"source": recipe.like.source.sha256, **recipe.described}


def _require_same(found: dict[str, Any], saved: dict[str, Any], what: str) -> None:
    for name in sorted({*found, *saved}):
        if found.get(name) != saved.get(name):
            raise RunError(
                f"the checkpoint is of a run with other {what}: {name} was {saved.get(name)!r:.200} and is "
                f"{found.get(name)!r:.200}. Give the same as before, or begin in another folder"
            )


def _write_record(recipe: Recipe, settings: RunSettings, progress: Progress, *, is_done: bool) -> None:
    losses = [(step, loss) for step, loss, _ in progress.losses]
    scores = [(figures["step"], figures[recipe.score]) for figures in progress.evaluations]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else KIB)
    record = {
        "schema_version": 1,
        "command": recipe.command,
        "is_done": is_done,
        "source": {"id": recipe.like.source.id, "sha256": recipe.like.source.sha256},
        "settings": settings.record(),
        **recipe.described,
        **progress.kept,
        "examples": len(recipe.lengths),
        "score": recipe.score,
        "best": {"step": progress.best_step, recipe.score: progress.best},
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "tokens": progress.tokens,
        "tokens_per_second": round(progress.tokens_per_second),
        "peak_memory_mib": round(peak / KIB**2),
        "evaluations": progress.evaluations,
        "losses": [{"step": step, "loss": round(loss, 6), "rate": rate} for step, loss, rate in progress.losses],
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }
    shown = (("Loss", losses), (f"{recipe.score.replace('_', ' ')}, held out", scores))
    panels = [Panel(title, "steps", [Line(title, plain(points))]) for title, points in shown if points]
    write_record(settings.output, record, draw_panels(f"Curves of {recipe.command}", panels))
