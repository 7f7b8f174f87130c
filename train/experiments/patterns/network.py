"""A row of the experiment, and its network: as many copies side by side as there are seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from train.experiments.patterns.tasks import KEYS, PLACES, TASKS, VALUES
from train.gates import HardConcreteGates
from train.parallel import generator_of

WIDTH = 32  # D


@dataclass(frozen=True, slots=True)
class Row:
    """A network for a task."""

    task: str
    heads: int  # H, of each layer
    d_k: int
    d_v: int
    layers: int = 1  # L
    gated: bool = False  # whether each head has a gate that is learned
    width: int = WIDTH  # D
    feed_forward: bool = True
    longer: int = 1  # how many times as many steps it is trained as other rows, at most

    @property
    def name(self) -> str:
        """A file's name."""
        sizes = f"h{self.heads}-k{self.d_k}-v{self.d_v}-l{self.layers}"
        width = "" if self.width == WIDTH else f"-d{self.width}"
        without = "" if self.feed_forward else "-attention-only"
        gated = f"-gated{self.longer}" if self.gated else ""
        return f"{self.task.replace(' ', '-')}-{sizes}{width}{without}{gated}"

    @property
    def predicted(self) -> float:
        """Accuracy of a network in which every head serves one pattern and the other answers are guessed."""
        task = TASKS[self.task]
        patterns = min(self.heads if self.d_k >= task.key_size else 0, task.needs)
        if not task.needs:
            return 1.0
        return (patterns + (task.needs - patterns) * task.guessed) / task.needs


def draw(seeds: Sequence[int], name: str, *shape: int) -> Tensor:
    """Normal numbers [R, *shape], of each seed and name others."""
    return torch.stack([torch.randn(shape, generator=generator_of(seed, *name.encode())) for seed in seeds])


class Network(nn.Module):
    """R networks side by side, one a seed: layers of attention and a feed-forward network, an answer at the last place.

    The last layer is computed at the last place alone: nothing else is read.
    """

    def __init__(self, row: Row, seeds: Sequence[int]) -> None:
        super().__init__()
        task, width, self.row = TASKS[row.task], row.width, row
        vocabulary = 1 + KEYS + VALUES + KEYS * task.answers

        def matrix(name: str, *shape: int, deviation: float) -> nn.Parameter:
            return nn.Parameter(deviation * draw(seeds, name, *shape))

        narrow = width**-0.5
        self.tokens = matrix("tokens", vocabulary, width, deviation=1.0)
        self.places = matrix("places", PLACES + 1, width, deviation=1.0)
        self.layers = nn.ModuleList()
        for layer in range(row.layers):
            part = {
                "query": matrix(f"query{layer}", width, row.heads * row.d_k, deviation=narrow),
                "key": matrix(f"key{layer}", width, row.heads * row.d_k, deviation=narrow),
                "value": matrix(f"value{layer}", width, row.heads * row.d_v, deviation=narrow),
                "output": matrix(f"output{layer}", row.heads * row.d_v, width, deviation=narrow),
            }
            if row.feed_forward:
                part |= {
                    "up": matrix(f"up{layer}", width, 4 * width, deviation=narrow),
                    "bias": matrix(f"bias{layer}", 1, 4 * width, deviation=0.0),
                    "down": matrix(f"down{layer}", 4 * width, width, deviation=narrow / 2),
                }
            self.layers.append(nn.ParameterDict(part))
        gated = seeds if row.gated else ()
        self.gates = nn.ModuleList(HardConcreteGates(row.heads) for _ in gated)
        self.answer = matrix("answer", width, task.answers * len(task.labels), deviation=narrow)

    @property
    def parts(self) -> list[nn.ParameterDict]:
        """The layers, typed as what they are."""
        return [cast(nn.ParameterDict, layer) for layer in self.layers]

    @property
    def gates_of_seeds(self) -> list[HardConcreteGates]:
        """The gates of each seed; empty if heads have none."""
        return [cast(HardConcreteGates, gates) for gates in self.gates]

    def forward(self, ids: Tensor, gates: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Ids [R, B, S, F], and factors on what heads add [R, B or 1, H], -> logits [R, B, A, C].

        `last_weights` [R, B, H, 1, S] are then what the last place looked at; `weights` are taken instead if given.
        """
        runs, rows, places, _ = ids.shape
        size = (self.row.width,)
        counts = torch.zeros(runs, rows, places, self.tokens.shape[1]).scatter_add_(3, ids, (ids > 0).float())
        # A product of counts: the gradient of a look-up is ten times slower on a CPU.
        hidden = _project(counts, self.tokens) + self.places[:, None]  # [R, B, S, D]
        for index, part in enumerate(self.parts):
            is_last = index == len(self.layers) - 1
            own = hidden[:, :, -1:] if is_last else hidden
            normed = rms_norm(hidden, size)
            query = _heads(rms_norm(own, size), part["query"], self.row.heads)  # [R, B, H, S or 1, K]
            key, value = (_heads(normed, part[name], self.row.heads) for name in ("key", "value"))
            looked = (query @ key.transpose(-1, -2) / math.sqrt(self.row.d_k)).softmax(dim=-1)
            self.last_weights = weights if is_last and weights is not None else looked
            context = self.last_weights @ value  # [R, B, H, S or 1, V]
            context = context if gates is None else context * gates[..., None, None]
            hidden = own + _project(context.transpose(2, 3).flatten(3), part["output"])
            if self.row.feed_forward:
                inner = _project(rms_norm(hidden, size), part["up"]) + part["bias"][:, None]
                hidden = hidden + _project(inner.relu(), part["down"])
        logits = rms_norm(hidden[:, :, 0], size) @ self.answer  # [R, B, A * C]
        return logits.view(*logits.shape[:2], -1, len(TASKS[self.row.task].labels))


def _project(hidden: Tensor, weight: Tensor) -> Tensor:
    """[R, B, S, n] by [R, n, m] -> [R, B, S, m]."""
    return (hidden.flatten(1, 2) @ weight).view(*hidden.shape[:3], -1)


def _heads(hidden: Tensor, weight: Tensor, heads: int) -> Tensor:
    """[R, B, S, D] by [R, D, H * K] -> [R, B, H, S, K]."""
    projected = _project(hidden, weight)
    return projected.view(*projected.shape[:3], heads, -1).transpose(2, 3)
