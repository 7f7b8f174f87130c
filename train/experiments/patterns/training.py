"""Trains the rows of the experiment, and keeps what each found."""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from train.experiments.patterns.memory import memorise
from train.experiments.patterns.network import WIDTH, Network, Row
from train.experiments.patterns.servable import write_servable
from train.experiments.patterns.tasks import OFFSETS, PLACES, TASKS, Examples, Task
from train.experiments.trials import Trial
from train.parallel import generator_of

HEADS = (1, 2, 4, 8, 16, 32)
KEY_SIZES = (1, 2, 4, 6)
VALUE_SIZES = (1, 2, 4, 32)
GATED_HEADS, GATED_SIZE = 8, 8
MAIN = ("one key", "two offsets", "four keys")  # tasks for two layers, and for twice the width
WIDE_HEADS = (1, 2, 4, 8)  # at twice the width
BATCH, RATE, JUDGED, EVERY = 64, 4e-3, 1000, 100
GATE_RATE = 30.0  # factor on the rate of gates: they have as far to go in fewer, noisier steps
OPEN_COST = 0.02  # nats that an open head costs; an answer without its pattern costs 0.5 and more
DONE = 0.995  # accuracy of every seed at which a row is done
NETWORKS, MEMORY = "networks", "memory"
ASKED = [PLACES - offset for offset in OFFSETS]  # the places


def rows(tasks: Sequence[str]) -> list[Row]:
    """Heads at equal parameters for each task, and what else may decide, one at a time."""
    made = [_narrow(task, heads) for task, heads in product(TASKS, HEADS)]
    made += [replace(_narrow(task, 1), d_k=d_k) for task, d_k in product(("one key", "count of three"), KEY_SIZES)]
    made += [replace(_narrow("four keys", 4), d_v=d_v) for d_v in VALUE_SIZES]
    made += [replace(_narrow(task, heads), layers=2) for task in MAIN for heads in (1, 4)]
    made += [replace(_narrow("two offsets", heads), feed_forward=False) for heads in (1, 2)]
    made += [replace(_narrow(task, GATED_HEADS), d_k=GATED_SIZE, d_v=GATED_SIZE, gated=True) for task in TASKS]
    made += [_narrow(task, heads, 2 * WIDTH) for task, heads in product(MAIN, WIDE_HEADS)]
    return [row for row in made if row.task in tasks]


def _narrow(task: str, heads: int, width: int = WIDTH) -> Row:
    """A row whose heads share the width, as they do in most networks; four keys are trained twice as long."""
    longer = 2 if task == "four keys" else 1
    return Row(task, heads, width // heads, width // heads, width=width, longer=longer)


def train_row(row: Row, seeds: Sequence[int], steps: int) -> tuple[Network, dict[str, Any]]:
    """Trains a row until every seed answers 99.5 % or the steps are over.

    Learned gates need all the steps: heads close after the answers are right. Of the networks, one a seed, the accuracy
    is returned, and their mean every 100 steps (`curve`).
    """
    began = time.process_time()
    task, network = TASKS[row.task], Network(row, seeds)
    rates = [RATE * GATE_RATE if name.startswith("gates.") else RATE for name, _ in network.named_parameters()]
    groups = [{"params": [one], "lr": rate} for one, rate in zip(network.parameters(), rates, strict=True)]
    optimizer = torch.optim.Adam(groups)
    judged = examples_of(task, seeds, JUDGED, -1)
    accuracies: list[float] = []
    curve: list[tuple[int, float]] = []
    for step in range(steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (step + 1) / 100, 2 * (1 - step / steps))
        optimizer.zero_grad()
        _loss(network, seeds, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            accuracies = _accuracies(network, judged)
            curve.append((step + 1, round(sum(accuracies) / len(seeds), 5)))
            if min(accuracies) >= DONE and not row.gated:
                break
    attention = sum(part[name][0].numel() for part in network.parts for name in ("query", "key", "value", "output"))
    found = {"accuracies": accuracies, "curve": curve, "steps": step + 1, "attention_parameters": attention}
    if row.gated:
        found["open_heads"] = [int((gates.settled() > 0).sum()) for gates in network.gates_of_seeds]
    return network, {**found, "cpu_seconds": round(time.process_time() - began, 1)}


def _loss(network: Network, seeds: Sequence[int], step: int) -> Tensor:
    ids, answers = examples_of(TASKS[network.row.task], seeds, BATCH, step)
    gated = network.gates_of_seeds
    drawn = [gates.draw(BATCH, generator_of(seed, step, 5)) for gates, seed in zip(gated, seeds, strict=False)]
    logits = network(ids, torch.stack(drawn) if drawn else None)
    loss = cross_entropy(logits.flatten(0, 2), answers.flatten()) * len(seeds)
    for gates in gated:
        loss = loss + OPEN_COST * network.row.heads * (1 - gates.expected_closed())
    return loss


def _accuracies(network: Network, judged: Examples) -> list[float]:
    """Of each seed, with gates as they settled."""
    settled = [gates.settled()[None] for gates in network.gates_of_seeds]
    with torch.inference_mode():
        found = network(judged[0], torch.stack(settled) if settled else None).argmax(dim=-1) == judged[1]
    return [round(value, 5) for value in found.float().mean(dim=(1, 2)).tolist()]


def examples_of(task: Task, seeds: Sequence[int], count: int, step: int) -> Examples:
    """Examples of every seed: ids [R, N, S, F] and answers [R, N, A]. Step -1 has those that networks are judged by."""
    made = [task.make(count, generator_of(seed, step + 1, 4)) for seed in seeds]
    return torch.stack([ids for ids, _ in made]), torch.stack([answers for _, answers in made])


def look_at_offsets(network: Network, judged: Examples) -> dict[str, list[Any]]:
    """Measures the weights of the last place in networks of one layer and one head, and changes them.

    Answers are right, or not, with the weights of the two asked places made equal in each text, and with each place's
    mean weight in every text.
    """
    ids, answers = judged
    with torch.inference_mode():
        network(ids)
        weights = network.last_weights[:, :, 0, 0]  # [R, N, S]
        equal, asked = weights.clone(), weights[..., ASKED]
        equal[..., ASKED] = asked.mean(dim=2, keepdim=True)
        mean = weights.mean(dim=1, keepdim=True)  # [R, 1, S]
        found = {"place_weights": mean[:, 0], "weight_difference": (asked[..., 0] - asked[..., 1]).abs().mean(dim=1)}
        for name, changed in (("right_if_equal", equal), ("right_if_mean", mean.expand_as(weights))):
            right = network(ids, weights=changed[:, :, None, None]).argmax(dim=-1) == answers  # [R, N, A]
            found[name] = right.float().mean(dim=(1, 2))
    return {name: figures.double().round(decimals=5).tolist() for name, figures in found.items()}


class Patterns:
    """All rows of the experiment."""

    def __init__(self, output: Path, tasks: Sequence[str], seeds: int, steps: int) -> None:
        self.output, self.rows, self.seeds, self.steps = output, rows(tasks), seeds, steps
        self.memorising = HEADS if MEMORY in tasks else ()

    def trials(self) -> list[Trial]:
        """A trial for each row, and one for each number of heads that memorises."""
        of_all = {"seeds": self.seeds, "steps": self.steps}
        return [
            *(Trial(row.name, {"row": asdict(row), **of_all}, lambda *_, row=row: self._run(row)) for row in self.rows),
            *(
                Trial(
                    f"{MEMORY}-h{heads}",
                    {"heads": heads, **of_all},
                    lambda *_, heads=heads: memorise(heads, range(self.seeds), self.steps),
                )
                for heads in self.memorising
            ),
        ]

    def _run(self, row: Row) -> dict[str, Any]:
        seeds = range(self.seeds)
        network, found = train_row(row, seeds, self.steps * row.longer)
        if row == _narrow("two offsets", 1):
            found |= look_at_offsets(network, examples_of(TASKS[row.task], seeds, JUDGED, -1))
        best = found["accuracies"].index(max(found["accuracies"]))  # the first of several that are as good
        write_servable(self.output / NETWORKS / row.name, network, best)
        return {**found, "served_seed": best}
