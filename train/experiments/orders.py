"""Compares ways to choose the heads that go: learned gates, orders of importance, chance; each healed alike."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch

from export.checkpoint import require_embedding
from export.heads.corpus import read_pairs, tokenize_pairs
from export.heads.importance import loss_gradient
from export.heads.subject import find_subject
from export.pruning.driver import least_first
from export.pruning.picture import Line, Panel, draw_panels
from export.pruning.removal import remove_heads
from model.encoder import Encoder
from train import loop
from train.commands import GateSettings
from train.data import read_material
from train.distillation import LONGEST, Distillation
from train.errors import RunError
from train.experiments.commands import OrderSettings
from train.experiments.trials import (
    Found,
    Trial,
    compare,
    difference_cells,
    format_interval,
    judge,
    of_steps,
    write_found,
)
from train.gates import Gates
from train.heal import CHOOSING_TEXTS, fit, tokens_to_choose_by
from train.parallel import generator_of
from train.removal import order_by_reconstruction
from train.settings import RunSettings

Way = Literal["gates", "reconstruction", "loss_gradient", "random"]
WAYS: tuple[Way, ...] = ("gates", "reconstruction", "loss_gradient", "random")
STAGES = ("not_healed", "fitted", "healed")
BASELINE = "random"
MOST_PAIRS = 500
HELD_OUT = 500
DRAWN = 3  # apart from what else is drawn from a seed


class Orders:
    """All trials of the comparison."""

    def __init__(self, settings: OrderSettings, run: RunSettings) -> None:
        """`run` is of healing, and its output the comparison's folder."""
        self.whole = find_subject(settings.model).checkpoint
        require_embedding(self.whole, "heads are compared")
        self.settings, self.run_settings = settings, replace(run, evaluations=1)
        self.heads = sum(self.whole.encoder.config.num_heads)
        for share in settings.shares:
            if not 0 < round(share * self.heads) < self.heads:
                raise RunError(f"{share:g} of {self.heads} heads is none or all: give another share")
        material = read_material(settings.texts, settings.held_out)
        most = max(settings.gate_steps, settings.steps) * run.batch_size
        self.material = material._replace(
            learned=material.learned[: max(most, settings.fitting_texts, CHOOSING_TEXTS)],
            held_out=material.held_out[:HELD_OUT],
        )
        self.pairs = read_pairs(settings.pairs)
        self.described = {
            **material.described,
            "source": self.whole.source.sha256,
            "distillation": asdict(settings.weights),
            "pairs": hashlib.sha256(settings.pairs.read_bytes()).hexdigest(),
            "fitting_texts": settings.fitting_texts,
            "steps": settings.steps,
            "gates": [settings.gate_steps, settings.gate_rate, settings.gate_learning_rate],
        }

    def trials(self) -> list[Trial]:
        """The first seed of every way at every share, then the second."""
        order = product(range(self.settings.seeds), self.settings.shares, WAYS)
        return [self._trial(way, share, seed) for seed, share, way in order]

    def _trial(self, way: Way, share: float, seed: int) -> Trial:
        run = self._steps(self.settings.steps, seed=seed)
        described = {**self.described, "way": way, "share": share, "run": run.record()}

        def heal(place: Path, is_begun: bool) -> Mapping[str, Any]:
            del is_begun  # short enough to begin again: its checkpoint would need its heads
            removed = self._choose(way, round(share * self.heads), seed, place / "gates")
            return {"removed": removed, **self._heal(removed, replace(run, output=place / "healed"))}

        return Trial(f"{way}-{share:g}-{seed}", described, heal)

    def _choose(self, way: Way, count: int, seed: int, place: Path) -> list[int]:
        """The heads to remove, counted from the first layer's first."""
        if way == "gates":
            return self._learn_gates(count, seed, place)
        if way == "random":
            return torch.randperm(self.heads, generator=generator_of(seed, DRAWN)).tolist()[:count]
        return (self._by_reconstruction if way == "reconstruction" else self._by_gradient)[:count]

    def _learn_gates(self, count: int, seed: int, place: Path) -> list[int]:
        settings = self.settings
        run = self._steps(settings.gate_steps, seed=seed, output=place, learning_rate=settings.gate_learning_rate)
        asked = GateSettings(
            model=settings.model,
            texts=settings.texts,
            remove=count / self.heads,
            gate_rate=settings.gate_rate,
            weights=settings.weights,
        )
        recipe = Gates(asked, run, self.material)
        loop.train(recipe, run)
        config = self.whole.encoder.config
        return [config.head_span(layer).start + head for layer, head in recipe.findings()["removed"]]

    def _heal(self, removed: Sequence[int], run: RunSettings) -> dict[str, Any]:
        student = remove_heads(self.whole.encoder, removed)
        not_healed = self._recipe(student, run).evaluate()
        if self.settings.fitting_texts:
            fit(student, self.whole, self.material.learned[: self.settings.fitting_texts])
        evaluations = loop.train(self._recipe(student, run), run).evaluations
        return {
            "not_healed": not_healed["cosine_mean"],
            "fitted": evaluations[0]["cosine_mean"],
            "healed": evaluations[-1]["cosine_mean"],
        }

    def _recipe(self, student: Encoder, run: RunSettings) -> Distillation:
        layers = range(self.whole.encoder.config.num_layers)
        return Distillation(student, self.whole, self.material, self.settings.weights, run, described={}, layers=layers)

    def _steps(self, steps: int, **changes: Any) -> RunSettings:
        return of_steps(self.run_settings, steps, len(self.material.learned), **changes)

    @cached_property
    def _by_reconstruction(self) -> list[int]:
        return order_by_reconstruction(self.whole.encoder, tokens_to_choose_by(self.whole, self.material.learned))

    @cached_property
    def _by_gradient(self) -> list[int]:
        some = self.pairs.choose(range(min(MOST_PAIRS, len(self.pairs.ratings))))
        pairs = tokenize_pairs(some, self.whole.tokenizer, min(LONGEST, self.whole.max_sequence_length))
        estimate = loss_gradient(self.whole.encoder, pairs)
        assert estimate is not None  # noqa: S101 - there are pairs
        return least_first(estimate.mean)


def write_orders(folder: Path, orders: Orders, found: Sequence[Found]) -> None:
    """Writes orders.json, orders.md and orders.svg."""
    record = summarise(orders, found)
    lines = [
        Line(way.replace("_", " "), [(row["share"], row["healed"]) for row in record["rows"] if row["way"] == way])
        for way in WAYS
    ]
    panel = Panel("Cosine to the whole network, healed", "heads removed", lines, percent=True)
    write_found(folder, "orders", record, table(record), {"orders": draw_panels(panel.title, [panel])})


def summarise(orders: Orders, found: Sequence[Found]) -> dict[str, Any]:
    """For each share and way the cosines before and after healing, and the difference from chance."""
    rows: list[dict[str, Any]] = []
    for share in sorted(orders.settings.shares):
        of_share = [trial for trial in found if trial["described"]["share"] == share]
        figures = {
            stage: compare(
                {way: [t[stage] for t in of_share if t["described"]["way"] == way] for way in WAYS}, BASELINE
            )
            for stage in STAGES
        }
        rows += [{"share": share, "way": way, **{stage: figures[stage][way] for stage in STAGES}} for way in WAYS]
    for stage in STAGES:
        judge([row[stage] for row in rows if "p" in row[stage]])
    first = found[0]["described"]
    return {
        "schema_version": 1,
        "score": "cosine_mean",
        "source": orders.whole.source.id,
        "settings": {key: first[key] for key in first if key not in ("way", "share")},
        "seeds": orders.settings.seeds,
        "rows": rows,
    }


def table(record: Mapping[str, Any]) -> list[str]:
    """The rows as Markdown."""
    lines = [
        "| heads removed | chosen by | not healed | fitted | healed, 95 % of seeds | against chance | beyond seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {100 * row['share']:.0f} % | {row['way'].replace('_', ' ')} | {row['not_healed']['mean']:.4f} | "
        f"{row['fitted']['mean']:.4f} | {format_interval(row['healed'])} | {difference_cells(row['healed'])} |"
        for row in record["rows"]
    ]
