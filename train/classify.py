"""Trains a classifier of texts, or of pairs of texts (a cross-encoder), from labels or scores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from export.heads.subject import find_subject
from export.similarity import rank_correlations
from model.config_parts import ClassificationSettings, ScoreActivation
from train.batching import TokenIds, tokenize_pairs, tokenize_texts
from train.data import Row, number_of, read_parts
from train.distil import make_student
from train.embedding import batches_by_length, run
from train.errors import DataError
from train.loop import Recipe
from train.settings import RunSettings

LONGEST = 256
MOST_LABELS = 1000

Kind = Literal["labels", "scores"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifySettings:
    """What is learned from what.

    Attributes:
        model: artifact, folder or hub id to begin with; None for the default model.
        rows: file of text, target, or text, text, target; or of words and a label for each (`train.label_tokens`).
        held_out: rows to judge by; None for a part of `rows`.
        pairs: whether rows hold two texts.
        kind: whether targets are names of labels or numbers.
    """

    model: str | None
    rows: Path
    held_out: Path | None = None
    pairs: bool = False
    kind: Kind = "labels"


class Classify(Recipe):
    """The recipe of `polyhead train classify`."""

    command = "classify"

    def __init__(self, settings: ClassifySettings, run_settings: RunSettings) -> None:
        """Reads everything, and adds randomly initialised layers for the labels.

        Raises:
            SourceError: the model or a file cannot be used.
            DataError: targets are no numbers, all alike, or too many labels.
        """
        columns = ("text", "text_pair", "target") if settings.pairs else ("text", "target")
        rows = read_parts(settings.rows, settings.held_out, columns)
        self.like = find_subject(settings.model).checkpoint
        self.kind = settings.kind
        self.score = "spearman" if settings.kind == "scores" else "accuracy"
        self.device = torch.device(run_settings.device)
        known = rows.learned if settings.kind == "scores" else rows.labelled
        targets = _Targets(settings.kind, known, settings.rows)
        activation: ScoreActivation = "sigmoid" if settings.kind == "scores" else "softmax"
        layers = ClassificationSettings(labels=tuple(targets.labels), activation=activation, dense_activation="tanh")
        config = replace(self.like.encoder.config, task="classification", task_settings=layers, projections=())
        student = make_student(config, self.like.encoder, range(config.num_layers), seed=run_settings.seed, parts=True)
        self.encoder = student.requires_grad_(True).to(self.device)
        self.module = self.encoder
        self.tokens, self.held_out = (self._tokenize(part, settings.pairs) for part in (rows.learned, rows.held_out))
        self.targets, self.expected = (targets.read(part) for part in (rows.learned, rows.held_out))
        self.lengths = self.tokens.lengths
        self.described = {**rows.described, "targets": targets.described()}

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """The gradient of cross entropy: of the labels, or of the score as a probability."""
        del step, share
        batch = self.tokens.batch(places).rows(self.processes.rows(len(places)))
        logits = self.processes.gather(run(self.encoder, batch.to(self.device)).float(), len(places))
        loss = self._loss(logits, self.targets[list(places)].to(self.device))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def evaluate(self) -> dict[str, float]:
        """Spearman x 100 of scores, or the percent of best labels that are right; and the loss."""
        logits = torch.zeros(len(self.held_out.ids), self.encoder.config.output_size)
        with torch.inference_mode():
            for places in batches_by_length(self.held_out.lengths):
                logits[places] = run(self.encoder, self.held_out.batch(places).to(self.device)).float().cpu()
            loss = float(self._loss(logits, self.expected))
        if self.kind == "scores":
            found = rank_correlations(logits[:, 0].numpy(), self.expected.numpy())
            return {"spearman": 100 * float(np.nan_to_num(found)), "loss": loss}
        return {"accuracy": 100 * float((logits.argmax(dim=1) == self.expected).float().mean()), "loss": loss}

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.kind == "scores":
            return binary_cross_entropy_with_logits(logits[:, 0], targets.clamp(0, 1))  # others than those learned
        return cross_entropy(logits, targets)

    def _tokenize(self, rows: Sequence[Row], pairs: bool) -> TokenIds:
        longest = min(LONGEST, self.like.max_sequence_length)
        if pairs:
            return tokenize_pairs([(row.fields[0], row.fields[1]) for row in rows], self.like.tokenizer, longest)
        return tokenize_texts([row.fields[0] for row in rows], self.like.tokenizer, longest)


class _Targets:
    """Targets as numbers: a label's place among the names, or a score put on 0 to 1 by the range of those learned."""

    def __init__(self, kind: Kind, rows: Sequence[Row], path: Path) -> None:
        found = [row.fields[-1].strip() for row in rows]
        self.kind = kind
        self.labels = ["score"]
        self.low = self.high = 0.0
        if kind == "scores":
            scores = [number_of(text, row.place, "the score") for text, row in zip(found, rows, strict=True)]
            self.low, self.high = min(scores), max(scores)
        else:
            self.labels = sorted(set(found))
        if kind == "scores" and self.low == self.high:
            raise DataError(f"{path}: every score is {self.low:g}; nothing can be learned from that")
        if kind == "labels" and not 2 <= len(self.labels) <= MOST_LABELS:
            raise DataError(
                f"{path}: {len(self.labels)} different labels; expected 2 to {MOST_LABELS}. Are these scores?"
            )

    def read(self, rows: Sequence[Row]) -> Tensor:
        """float32 [rows] of scores, int64 [rows] of labels."""
        if self.kind == "scores":
            scores = [number_of(row.fields[-1], row.place, "the score") for row in rows]
            return torch.tensor([(score - self.low) / (self.high - self.low) for score in scores])
        places = {label: place for place, label in enumerate(self.labels)}
        for row in rows:
            if row.fields[-1].strip() not in places:
                raise DataError(f"{row.place}: label {row.fields[-1][:40]!r} is none of those learned from")
        return torch.tensor([places[row.fields[-1].strip()] for row in rows])

    def described(self) -> dict[str, Any]:
        if self.kind == "scores":
            return {"kind": "scores", "low": self.low, "high": self.high}
        return {"kind": "labels", "labels": self.labels}
