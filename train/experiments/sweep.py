"""Trains one encoder with different numbers of heads, from nothing, and compares them over seeds.

Vaswani et al. 2017 (table 3, rows A) did so for translation with d_k = d_v = D / h, with one run a row.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from export.checkpoint import require_embedding
from export.heads.subject import find_subject
from export.pruning.picture import Line, Panel, draw_panels
from model.config import EncoderConfig
from model.encoder import Encoder
from model.initialise import initialise
from train import loop
from train.batching import TokenIds, tokenize_texts
from train.data import read_material
from train.distil import student_config
from train.distillation import LONGEST, cosine_loss, similarity_loss
from train.embedding import cosine_figures, embed_ids, run
from train.errors import RunError
from train.experiments.commands import SweepSettings
from train.experiments.trials import (
    Found,
    Trial,
    compare,
    difference_cells,
    format_interval,
    of_steps,
    variance_test,
    write_found,
)
from train.loop import Recipe
from train.settings import RunSettings

COMPARED_HEADS = 8  # the row that others are compared with, and of the further rows
BASELINE = f"equal-{COMPARED_HEADS}"
HEAD_DROPOUT = 0.1
HELD_OUT = 500
SERIES = {"equal": "equal parameters", "fixed": "equal size of a head"}


class Variant(NamedTuple):
    """One row: its name, the fields of `EncoderConfig` in which it differs from the teacher, and its head dropout."""

    name: str
    fields: Mapping[str, Any]
    head_dropout: float = 0.0


def variants(width: int, settings: SweepSettings) -> list[Variant]:
    """The rows: heads at equal parameters, heads of equal size, and something else at the compared number of heads."""
    if uneven := [heads for heads in settings.heads if width % heads]:
        raise RunError(f"{uneven[0]} heads do not divide the width of {width}: give divisors with --heads")
    if COMPARED_HEADS not in settings.heads:
        raise RunError(f"rows are compared with {COMPARED_HEADS} heads: name them in --heads too")

    def fields(heads: int, size: int) -> dict[str, Any]:
        return {"num_heads": [heads] * settings.num_layers, "d_k": size, "d_v": size}

    fixed = width // COMPARED_HEADS
    compared = fields(COMPARED_HEADS, fixed)
    residual = [[0.0, 1.0]] + [[0.5, 0.5]] * (settings.num_layers - 1)
    return [
        *(Variant(f"equal-{heads}", fields(heads, width // heads)) for heads in settings.heads),
        *(Variant(f"fixed-{heads}", fields(heads, fixed)) for heads in settings.heads if heads != COMPARED_HEADS),
        Variant("head-dropout", compared, HEAD_DROPOUT),
        Variant("value-residual", {**compared, "value_residual": residual, "learned_value_residual": True}),
        Variant("output-gate", {**compared, "output_gate": True}),
    ]


class Vectors(Recipe):
    """Cosine to the teacher's vectors, and the similarities within a batch; parameters without gradient stay."""

    command = "sweep"
    score = "cosine_mean"

    def __init__(self, encoder: Encoder, sweep: "Sweep", tokens: TokenIds, targets: Tensor) -> None:
        """`targets` are the vectors to learn, [texts, D]."""
        self.like, self.device = sweep.teacher, torch.device(sweep.run_settings.device)
        self.encoder = encoder.to(self.device)
        self.module = self.encoder
        self.tokens, self.targets, self.lengths = tokens, targets, tokens.lengths
        self.held_out, self.expected = sweep.held_out, sweep.expected

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """The gradient of the distance to the vectors."""
        del step, share
        target = self.targets[list(places)].to(self.device)
        found = run(self.encoder, self.tokens.batch(places).to(self.device)).float()
        loss = cosine_loss(found, target) + similarity_loss(found, target)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def evaluate(self) -> dict[str, float]:
        """Cosines to the vectors of texts that are not trained on."""
        return cosine_figures(embed_ids(self.encoder, self.held_out, self.device), self.expected)


class Sweep:
    """All runs of a sweep."""

    def __init__(self, settings: SweepSettings, run: RunSettings) -> None:
        teacher = find_subject(settings.model).checkpoint
        require_embedding(teacher, "a student is judged")
        self.settings, self.teacher = settings, teacher
        self.variants = variants(teacher.encoder.config.hidden_size, settings)
        self.configs = [student_config(teacher.encoder.config, variant.fields) for variant in self.variants]
        material = read_material(settings.texts, settings.held_out)
        longest = min(LONGEST, teacher.max_sequence_length)
        most = settings.steps * run.batch_size
        self.tokens = tokenize_texts(material.learned[:most], teacher.tokenizer, longest)
        self.held_out = tokenize_texts(material.held_out[:HELD_OUT], teacher.tokenizer, longest)
        self.run_settings = replace(run, evaluations=1)
        self.described = {**material.described, "source": teacher.source.sha256}

    @cached_property
    def targets(self) -> Tensor:
        """The vectors that all runs learn, [texts, D]."""
        return self._embed(self.tokens)

    @cached_property
    def expected(self) -> Tensor:
        """The vectors of the texts to judge by."""
        return self._embed(self.held_out)

    def _embed(self, tokens: TokenIds) -> Tensor:
        device = torch.device(self.run_settings.device)
        return embed_ids(self.teacher.encoder.to(device), tokens, device)

    def seconds_per_step(self, steps: int) -> float:
        """How long a step of the compared row takes, from a run of some steps that is thrown away."""
        few = TokenIds(self.tokens.ids[: steps * self.run_settings.batch_size])
        config = self.configs[[variant.name for variant in self.variants].index(BASELINE)]
        with TemporaryDirectory() as folder:
            run = of_steps(self.run_settings, steps, len(few.ids), output=Path(folder) / "measured")
            progress = loop.train(Vectors(self.first_weights(config, seed=0), self, few, self._embed(few)), run)
        return progress.seconds / progress.step

    def trials(self) -> list[Trial]:
        """The first seed of every row, then the second."""
        rows = list(zip(self.variants, self.configs, strict=True))
        return [self._trial(*row, seed) for seed in range(self.settings.seeds) for row in rows]

    def _trial(self, variant: Variant, config: EncoderConfig, seed: int) -> Trial:
        run = of_steps(
            self.run_settings, self.settings.steps, len(self.tokens.ids), seed=seed, head_dropout=variant.head_dropout
        )
        described = {
            **self.described,
            "row": variant.name,
            "fields": dict(variant.fields),
            "run": run.record(),
            "own_embeddings": self.settings.full,
            "steps": self.settings.steps,  # of as many texts as they take, the run says one epoch
        }

        def train(place: Path, is_begun: bool) -> dict[str, Any]:
            recipe = Vectors(self.first_weights(config, seed), self, self.tokens, self.targets)
            began = time.process_time()
            progress = loop.train(recipe, replace(run, output=place, resume=is_begun))
            return {
                "score": progress.evaluations[-1][recipe.score],
                "parameters": sum(parameter.numel() for parameter in recipe.encoder.layers.parameters()),
                "seconds_per_step": round(progress.seconds / progress.step, 4),
                "cpu_seconds": round(time.process_time() - began, 1),
                "losses": progress.losses,
            }

        return Trial(f"{variant.name}-{seed}", described, train)

    def first_weights(self, config: EncoderConfig, seed: int) -> Encoder:
        """A network as a run begins with it."""
        encoder = initialise(Encoder(config), seed)
        if not self.settings.full:
            whole = self.teacher.encoder.state_dict()
            own = {name: whole[name] for name in encoder.state_dict() if name.startswith("embeddings.")}
            encoder.load_state_dict(own, strict=False)
            encoder.embeddings.requires_grad_(False)
        return encoder


def write_sweep(folder: Path, sweep: Sweep, found: Sequence[Found]) -> None:
    """Writes sweep.json, sweep.md and sweep.svg."""
    record = summarise(sweep, found)
    rows = {row["row"]: row for row in record["rows"]}
    points = {kind: [(rows[name]["heads"], rows[name]) for name in _rows_of(kind, rows)] for kind in SERIES}
    lines = [Line(name, sorted(points[kind], key=itemgetter(0))) for kind, name in SERIES.items()]
    panel = Panel("Cosine to the vectors to learn", "heads a layer", lines, logarithmic=True)
    write_found(folder, "sweep", record, table(record), {"sweep": draw_panels(panel.title, [panel])})


def summarise(sweep: Sweep, found: Sequence[Found]) -> dict[str, Any]:
    """Rows with means and intervals, and whether heads matter more than seeds do."""
    by_row: dict[str, list[Found]] = {}
    for trial in found:
        by_row.setdefault(trial["described"]["row"], []).append(trial)
    values = {row: [trial["score"] for trial in trials] for row, trials in by_row.items()}
    rows = []
    for row, figures in compare(values, BASELINE).items():
        fields, parameters = (by_row[row][0][name] for name in ("described", "parameters"))
        seconds = fmean(trial["seconds_per_step"] for trial in by_row[row])
        shape = {"heads": fields["fields"]["num_heads"][0], "d_k": fields["fields"]["d_k"], "parameters": parameters}
        rows.append({"row": row, **shape, **figures, "seconds_per_step": round(seconds, 4)})
    tests = {kind: variance_test({row: values[row] for row in _rows_of(kind, values)}) for kind in SERIES}
    first = found[0]["described"]
    return {
        "schema_version": 1,
        "score": "cosine_mean",
        "source": sweep.teacher.source.id,
        "settings": {key: first[key] for key in first if key not in ("row", "fields")},
        "num_layers": sweep.settings.num_layers,
        "steps": sweep.settings.steps,
        "seeds": sweep.settings.seeds,
        "rows": rows,
        "variance_tests": tests,
        "cpu_seconds": round(sum(trial["cpu_seconds"] for trial in found)),
    }


def table(record: Mapping[str, Any]) -> list[str]:
    """The rows as Markdown."""
    lines = [
        "| row | heads | d_k | parameters | cosine, 95 % of seeds | against 8 heads | beyond seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        kind = row["row"].partition("-")[0]
        lines.append(
            f"| {SERIES.get(kind, row['row'].replace('-', ' '))} | {row['heads']} | {row['d_k']} | "
            f"{row['parameters'] / 1e6:.2f} M | {format_interval(row)} | {difference_cells(row)} |"
        )
    for kind, test in record["variance_tests"].items():
        if test:
            lines += [
                "",
                f"{SERIES[kind].capitalize()}: F = {test['f']:.2f}, p = {test['p']:.2g} (analysis of variance).",
            ]
    return lines


def _rows_of(kind: str, names: Mapping[str, Any]) -> list[str]:
    return [name for name in names if name.startswith(f"{kind}-") or name == BASELINE]  # which belongs to both
