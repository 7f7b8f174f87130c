"""What several heads do that one cannot: small networks on made-up tasks, over seeds, beside what theory predicts.

One place of a text has to answer from others. A head gives it one average of them, weighed by one softmax: one pattern.
Each task says how many patterns an answer needs at once. All seeds of a row are trained side by side, as one batch.

A head picks one of n places only if that place's key is an extreme point of all keys (the score is linear in it): with
d_k = 1 these are two, enough for a place that is always the same; with d_k = 2 all keys on a circle are. A head
averages any q of n places only if every q keys are a face of all, which a cyclic polytope has from d_k = 2 q on
(Sanford, Hsu and Telgarsky 2023, arXiv 2306.02896).
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, rms_norm

from export.pruning.picture import Line, Panel
from train.experiments.trials import Found, estimate, format_interval, is_done, run_trial, write_found
from train.gates import HardConcreteGates
from train.parallel import generator_of

WIDTH = 32  # D
PLACES = 8  # that an answer is found at; one more holds the question
KEYS, VALUES = 16, 8
CHOSEN = 3  # places whose values are counted
OFFSETS = (1, 4)
HEADS = (1, 2, 4, 8, 32)
KEY_SIZES = (1, 2, 4, 6)
VALUE_SIZES = (1, 2, 4, 32)
GATED_HEADS, GATED_SIZE = 8, 8
DEEPER = ("one key", "two offsets", "four keys")  # tasks for two layers
BATCH, RATE, JUDGED, EVERY = 64, 4e-3, 2000, 250
GATE_RATE = 30.0  # factor on the rate of gates: they have as far to go in fewer, noisier steps
OPEN_COST = 0.02  # nats that an open head costs; an answer without its pattern costs 0.5 and more
DONE = 0.995  # accuracy of every seed at which a row is done

Examples = tuple[Tensor, Tensor]
"""Token ids [N, S, F], of which a place adds F embeddings (0 is none), and answers [N, A]."""


class Task(NamedTuple):
    """What is asked.

    Attributes:
        needs: patterns that the answering place needs at once.
        key_size: the smallest d_k of a head that has one.
        answers: A, read from the last place side by side.
        classes: of each answer.
        make: examples, as many as asked for.
    """

    needs: int
    key_size: int
    answers: int
    classes: int
    make: Callable[[int, torch.Generator], Examples]


def recall(asked: int) -> Task:
    """Places hold a key and a value; the last one asks for the values of several keys, each in its own place."""

    def make(count: int, generator: torch.Generator) -> Examples:
        keys = torch.rand(count, KEYS, generator=generator).argsort(dim=1)[:, :PLACES]
        values = torch.randint(VALUES, (count, PLACES), generator=generator)
        chosen = torch.rand(count, PLACES, generator=generator).argsort(dim=1)[:, :asked]
        ids = torch.zeros(count, PLACES + 1, max(2, asked), dtype=torch.int64)
        ids[:, :PLACES, 0], ids[:, :PLACES, 1] = 1 + keys, 1 + KEYS + values
        slots = torch.arange(asked) * KEYS
        ids[:, PLACES, :asked] = 1 + KEYS + VALUES + slots + keys.gather(1, chosen)
        return ids, values.gather(1, chosen)

    return Task(asked, 2, asked, VALUES, make)


def copy_offsets(count: int, generator: torch.Generator) -> Examples:
    """The last place repeats the tokens at two distances before it."""
    values = torch.randint(VALUES, (count, PLACES), generator=generator)
    ids = torch.zeros(count, PLACES + 1, 1, dtype=torch.int64)
    ids[:, :PLACES, 0] = 1 + values
    return ids, torch.stack([values[:, PLACES - offset] for offset in OFFSETS], dim=1)


def count_chosen(count: int, generator: torch.Generator) -> Examples:
    """The last place names three places; the answer is how many of them hold a one."""
    bits = torch.randint(2, (count, PLACES), generator=generator)
    chosen = torch.rand(count, PLACES, generator=generator).argsort(dim=1)[:, :CHOSEN]
    ids = torch.zeros(count, PLACES + 1, CHOSEN, dtype=torch.int64)
    ids[:, :PLACES, 0] = 1 + bits
    ids[:, PLACES] = 3 + chosen
    return ids, bits.gather(1, chosen).sum(dim=1, keepdim=True)


def agree(count: int, generator: torch.Generator) -> Examples:
    """The number of the subject, somewhere before; a distractor has a number too, others have none."""
    two = torch.rand(count, PLACES, generator=generator).argsort(dim=1)[:, :2]
    numbers = torch.randint(2, (count, 2), generator=generator)
    ids = torch.zeros(count, PLACES + 1, 1, dtype=torch.int64)
    ids[:, :PLACES, 0] = 5 + torch.randint(VALUES, (count, PLACES), generator=generator)
    ids[:, :, 0].scatter_(1, two, 1 + torch.tensor([0, 2]) + numbers)
    return ids, numbers[:, :1]


def repeat_own(count: int, generator: torch.Generator) -> Examples:
    """The last place's own token: no other place is needed."""
    ids = 1 + torch.randint(VALUES, (count, PLACES + 1, 1), generator=generator)
    return ids, ids[:, PLACES] - 1


TASKS: Mapping[str, Task] = {
    "own token": Task(0, 0, 1, VALUES, repeat_own),
    "agreement": Task(1, 1, 1, 2, agree),
    "one key": recall(1),
    "count of three": Task(1, 2 * CHOSEN, 1, CHOSEN + 1, count_chosen),
    "two offsets": Task(2, 1, len(OFFSETS), VALUES, copy_offsets),
    "four keys": recall(4),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A network for a task: its layers, its heads and their sizes, and whether each head has a gate that is learned."""

    task: str
    heads: int
    d_k: int
    d_v: int
    layers: int = 1
    gated: bool = False

    @property
    def name(self) -> str:
        """A file's name."""
        gated = "-gated" if self.gated else ""
        return f"{self.task.replace(' ', '-')}-{self.heads}-{self.d_k}-{self.d_v}-{self.layers}{gated}"

    @property
    def predicted(self) -> float:
        """Accuracy of a network in which every head serves one pattern and the other answers are guessed."""
        task = TASKS[self.task]
        patterns = min(self.heads if self.d_k >= task.key_size else 0, task.needs)
        if not task.needs:
            return 1.0
        guessed = MAJORITY if self.task == "count of three" else 1 / task.classes
        return (patterns + (task.needs - patterns) * guessed) / task.needs


MAJORITY = 3 / 8  # of the counts 0 to 3 of ones among three places


def rows(tasks: Sequence[str]) -> list[Row]:
    """Heads at equal parameters for each task, sizes of keys and of values alone, two layers, and learned gates."""
    made = [Row(task, heads, WIDTH // heads, WIDTH // heads) for task, heads in product(TASKS, HEADS)]
    made += [Row(task, 1, d_k, WIDTH) for task, d_k in product(("one key", "count of three"), KEY_SIZES)]
    made += [Row("four keys", 4, WIDTH // 4, d_v) for d_v in VALUE_SIZES]
    made += [Row(task, heads, WIDTH // heads, WIDTH // heads, 2) for task in DEEPER for heads in (1, 4)]
    made += [Row(task, GATED_HEADS, GATED_SIZE, GATED_SIZE, gated=True) for task in TASKS]
    return [row for row in made if row.task in tasks]


class Network(nn.Module):
    """R networks side by side, one a seed: layers of attention and a feed-forward network, an answer at the last place.

    The last layer is computed at the last place alone: nothing else is read.
    """

    def __init__(self, row: Row, seeds: Sequence[int]) -> None:
        super().__init__()
        task, self.row = TASKS[row.task], row
        vocabulary = 1 + KEYS + VALUES + KEYS * task.answers

        def matrix(name: str, *shape: int, deviation: float) -> nn.Parameter:
            drawn = [torch.randn(shape, generator=generator_of(seed, *name.encode())) for seed in seeds]
            return nn.Parameter(deviation * torch.stack(drawn))

        narrow = WIDTH**-0.5
        self.tokens = matrix("tokens", vocabulary, WIDTH, deviation=1.0)
        self.places = matrix("places", PLACES + 1, WIDTH, deviation=1.0)
        self.layers = nn.ModuleList()
        for layer in range(row.layers):
            self.layers.append(
                nn.ParameterDict(
                    {
                        "query": matrix(f"query{layer}", WIDTH, row.heads * row.d_k, deviation=narrow),
                        "key": matrix(f"key{layer}", WIDTH, row.heads * row.d_k, deviation=narrow),
                        "value": matrix(f"value{layer}", WIDTH, row.heads * row.d_v, deviation=narrow),
                        "output": matrix(f"output{layer}", row.heads * row.d_v, WIDTH, deviation=narrow),
                        "up": matrix(f"up{layer}", WIDTH, 4 * WIDTH, deviation=narrow),
                        "bias": matrix(f"bias{layer}", 1, 4 * WIDTH, deviation=0.0),
                        "down": matrix(f"down{layer}", 4 * WIDTH, WIDTH, deviation=narrow / 2),
                    }
                )
            )
        gated = seeds if row.gated else ()
        self.gates = nn.ModuleList(HardConcreteGates(row.heads) for _ in gated)
        self.answer = matrix("answer", WIDTH, task.answers * task.classes, deviation=narrow)

    @property
    def parts(self) -> list[nn.ParameterDict]:
        """The layers, typed as what they are."""
        return [cast(nn.ParameterDict, layer) for layer in self.layers]

    def forward(self, ids: Tensor, gates: Tensor | None = None) -> Tensor:
        """Ids [R, B, S, F], and factors on what heads add [R, B or 1, H], -> logits [R, B, A, C]."""
        runs, rows, places, _ = ids.shape
        counts = torch.zeros(runs, rows, places, self.tokens.shape[1]).scatter_add_(3, ids, (ids > 0).float())
        # A product of counts: the gradient of a look-up is ten times slower on a CPU.
        hidden = _project(counts, self.tokens) + self.places[:, None]  # [R, B, S, D]
        for index, part in enumerate(self.parts):
            own = hidden[:, :, -1:] if index == len(self.layers) - 1 else hidden
            normed = rms_norm(hidden, (WIDTH,))
            query = _heads(rms_norm(own, (WIDTH,)), part["query"], self.row.heads)  # [R, B, H, S or 1, K]
            key, value = (_heads(normed, part[name], self.row.heads) for name in ("key", "value"))
            weights = (query @ key.transpose(-1, -2) / math.sqrt(self.row.d_k)).softmax(dim=-1)
            context = weights @ value  # [R, B, H, S or 1, V]
            context = context if gates is None else context * gates[..., None, None]
            own = own + _project(context.transpose(2, 3).flatten(3), part["output"])
            inner = _project(rms_norm(own, (WIDTH,)), part["up"]) + part["bias"][:, None]
            hidden = own + _project(inner.relu(), part["down"])
        logits = rms_norm(hidden[:, :, 0], (WIDTH,)) @ self.answer  # [R, B, A * C]
        return logits.view(*logits.shape[:2], -1, TASKS[self.row.task].classes)


def _project(hidden: Tensor, weight: Tensor) -> Tensor:
    """[R, B, S, n] by [R, n, m] -> [R, B, S, m]."""
    return (hidden.flatten(1, 2) @ weight).view(*hidden.shape[:3], -1)


def _heads(hidden: Tensor, weight: Tensor, heads: int) -> Tensor:
    """[R, B, S, D] by [R, D, H * K] -> [R, B, H, S, K]."""
    projected = _project(hidden, weight)
    return projected.view(*projected.shape[:3], heads, -1).transpose(2, 3)


def train_row(row: Row, seeds: Sequence[int], steps: int) -> dict[str, Any]:
    """Trains a row until every seed answers 99.5 % or the steps are over, and returns the accuracy of each.

    Learned gates need all the steps: heads close after the answers are right.
    """
    began = time.process_time()
    task, network = TASKS[row.task], Network(row, seeds)
    rates = [RATE * GATE_RATE if name.startswith("gates.") else RATE for name, _ in network.named_parameters()]
    groups = [{"params": [one], "lr": rate} for one, rate in zip(network.parameters(), rates, strict=True)]
    optimizer = torch.optim.Adam(groups)
    judged = _examples(task, seeds, JUDGED, -1)
    accuracies: list[float] = []
    for step in range(steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (step + 1) / 100, 2 * (1 - step / steps))
        ids, answers = _examples(task, seeds, BATCH, step)
        drawn = [
            each.draw(BATCH, generator_of(seed, step, 5)) for each, seed in zip(_gates(network), seeds, strict=False)
        ]
        logits = network(ids, torch.stack(drawn) if drawn else None)
        loss = cross_entropy(logits.flatten(0, 2), answers.flatten()) * len(seeds)  # each network its own mean
        for gates in _gates(network):
            loss = loss + OPEN_COST * row.heads * (1 - gates.expected_closed())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            accuracies = _accuracies(network, judged)
            if min(accuracies) >= DONE and not row.gated:
                break
    attention = sum(part[name][0].numel() for part in network.parts for name in ("query", "key", "value", "output"))
    found = {"accuracies": accuracies, "steps": step + 1, "attention_parameters": attention}
    if row.gated:
        found["open_heads"] = [int((gates.settled() > 0).sum()) for gates in _gates(network)]
    return {**found, "cpu_seconds": round(time.process_time() - began, 1)}


def _gates(network: Network) -> list[HardConcreteGates]:
    return [cast(HardConcreteGates, gates) for gates in network.gates]


def _accuracies(network: Network, judged: Examples) -> list[float]:
    """Of each seed, with gates as they settled."""
    settled = [gates.settled()[None] for gates in _gates(network)]
    with torch.inference_mode():
        found = network(judged[0], torch.stack(settled) if settled else None).argmax(dim=-1) == judged[1]
    return [round(value, 5) for value in found.float().mean(dim=(1, 2)).tolist()]


def _examples(task: Task, seeds: Sequence[int], count: int, step: int) -> Examples:
    """Examples of every seed: ids [R, N, S, F] and answers [R, N, A]."""
    made = [task.make(count, generator_of(seed, step + 1, 4)) for seed in seeds]
    return torch.stack([ids for ids, _ in made]), torch.stack([answers for _, answers in made])


class Patterns:
    """All rows of the experiment."""

    def __init__(self, output: Path, tasks: Sequence[str], seeds: int, steps: int) -> None:
        self.output, self.rows, self.seeds, self.steps = output, rows(tasks), seeds, steps

    def trials(self) -> Iterator[Found]:
        """What each row found; those that were run before are not run again."""
        for row in self.rows:
            described = {"row": asdict(row), "seeds": self.seeds, "steps": self.steps}
            yield run_trial(
                self.output, row.name, described, lambda *_, row=row: train_row(row, range(self.seeds), self.steps)
            )

    def left(self) -> int:
        """How many rows are still to be trained."""
        return sum(not is_done(self.output, row.name) for row in self.rows)


def write_patterns(folder: Path, patterns: Patterns, found: Sequence[Found]) -> Mapping[str, Any]:
    """Writes patterns.json, patterns.md and patterns.svg, and returns the first."""
    record: dict[str, Any] = {"schema_version": 1, "seeds": patterns.seeds, "steps": patterns.steps, "rows": []}
    for row, trial in zip(patterns.rows, found, strict=True):
        names = ("steps", "attention_parameters", "cpu_seconds", "open_heads")
        figures = {name: trial[name] for name in names if name in trial}
        accuracy = {"values": trial["accuracies"], **estimate(trial["accuracies"])}
        record["rows"].append(
            {**asdict(row), "needs": TASKS[row.task].needs, "predicted": round(row.predicted, 4), **figures, **accuracy}
        )
    lines = [
        Line(task, [(row["heads"], row) for row in record["rows"] if row["task"] == task and _is_equal(row)])
        for task in TASKS
        if task != "own token"
    ]
    panel = Panel("Answers that are right, equal parameters", "heads", [line for line in lines if line.points], True)
    write_found(folder, "patterns", record, table(record), panel)
    return record


def _is_equal(row: Mapping[str, Any]) -> bool:
    return bool(
        row["layers"] == 1 and not row["gated"] and row["heads"] * row["d_k"] == row["heads"] * row["d_v"] == WIDTH
    )


def table(record: Mapping[str, Any]) -> list[str]:
    """The rows as Markdown."""
    return [
        "| task | patterns | layers | heads | d_k | d_v | predicted | right, 95 % | worst seed | steps | open |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {row['task']} | {row['needs']} | {row['layers']} | {row['heads']} | {row['d_k']} | {row['d_v']} | "
            f"{row['predicted']:.3f} | {format_interval(row)} | {min(row['values']):.4f} | {row['steps']} | "
            f"{', '.join(map(str, row.get('open_heads', [])))} |"
            for row in record["rows"]
        ),
    ]
