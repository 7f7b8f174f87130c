"""Trains a classifier of texts, of pairs of texts (a cross-encoder), or of words, from labels or scores."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.nn.utils.rnn import pad_sequence

from export.heads.subject import find_subject
from export.similarity import rank_correlations
from model.config_parts import ClassificationSettings, Task
from train.batching import TokenIds, tokenize_texts
from train.commands import ClassifySettings
from train.data import Row, Rows, read_parts
from train.distil import make_student
from train.embedding import batches_by_length, run
from train.errors import DataError
from train.loop import Recipe
from train.settings import RunSettings

LONGEST = 256
MOST_LABELS = 1000
COLUMNS = {
    ("text", False): ("text", "target"),
    ("text", True): ("text", "text_pair", "target"),
    ("tokens", False): ("text", "labels"),
}
UNLABELLED = -100  # cross_entropy leaves it out


class Classify(Recipe):
    """The recipe of `polyhead train classify`."""

    command = "classify"
    task: Task = "classification"
    targets: Sequence[Tensor] | Tensor
    expected: Sequence[Tensor] | Tensor  # of the held-out rows

    def __init__(self, settings: ClassifySettings, run_settings: RunSettings) -> None:
        rows = read_parts(settings.rows, settings.held_out, COLUMNS[settings.level, settings.pairs])
        self.like = find_subject(settings.model).checkpoint
        self.scores = settings.scores
        self.score = "spearman" if settings.scores else "accuracy"
        self.device = torch.device(run_settings.device)
        self.longest = min(LONGEST, self.like.max_sequence_length)
        layers, described = self._read(settings, rows)
        config = replace(self.like.encoder.config, task=self.task, task_settings=layers, projections=())
        student = make_student(config, self.like.encoder, range(config.num_layers), seed=run_settings.seed, parts=True)
        self.encoder = student.requires_grad_(True).to(self.device)
        self.module = self.encoder
        self.lengths = self.tokens.lengths
        self.described = {**rows.described, "targets": described}

    def _read(self, settings: ClassifySettings, rows: Rows) -> tuple[ClassificationSettings, dict[str, Any]]:
        """Keeps tokens and targets; returns the layers for them, and what the record says of the targets."""
        parts = (rows.learned, rows.held_out)
        self.tokens, self.held_out = (
            tokenize_texts(
                [row.fields[:2] if settings.pairs else row.fields[0] for row in part],
                self.like.tokenizer,
                self.longest,
                pairs=settings.pairs,
            )
            for part in parts
        )
        if settings.scores:
            (self.targets, self.expected), described = read_scores(parts, settings.rows)
            return ClassificationSettings(labels=("score",), activation="sigmoid"), described
        labels = sorted({row.fields[-1].strip() for row in rows.labelled})
        require_labels(labels, settings.rows, ". Are these scores?")
        self.targets, self.expected = (_places(part, labels) for part in parts)
        layers = ClassificationSettings(labels=tuple(labels), activation="softmax")
        return layers, {"kind": "labels", "labels": labels}

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """The gradient of cross entropy: of the labels, or of the score as a probability."""
        del step, share
        batch = self.tokens.batch(places).rows(self.processes.rows(len(places)))
        logits = self.processes.gather(run(self.encoder, batch.to(self.device)).float(), len(places))
        loss = self._loss(logits, [self.targets[place] for place in places])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def evaluate(self) -> dict[str, float]:
        """Spearman x 100 of scores, or the percent of best labels that are right; and the loss."""
        logits, expected = torch.zeros(len(self.held_out.ids), self.encoder.config.output_size), list(self.expected)
        with torch.inference_mode():
            for places in batches_by_length(self.held_out.lengths):
                logits[places] = run(self.encoder, self.held_out.batch(places).to(self.device)).float().cpu()
            loss = float(self._loss(logits, expected))
        if self.scores:
            found = rank_correlations(logits[:, 0].numpy(), torch.stack(expected).numpy())
            return {"spearman": 100 * float(np.nan_to_num(found)), "loss": loss}
        is_right = logits.argmax(dim=1) == torch.stack(expected)
        return {"accuracy": 100 * float(is_right.float().mean()), "loss": loss}

    def _loss(self, logits: Tensor, targets: Sequence[Tensor]) -> Tensor:
        expected = torch.stack(list(targets)).to(logits.device)
        if self.scores:
            return binary_cross_entropy_with_logits(logits[:, 0], expected.clamp(0, 1))  # others than those learned
        return cross_entropy(logits, expected)


class LabelTokens(Classify):
    """The recipe of `polyhead train classify --level tokens`: names in a text, parts of speech.

    A word's first token has its label; its other tokens learn nothing, and the service's `aggregation` `"first"` reads
    words in the same way.
    """

    task: Task = "token_classification"

    def _read(self, settings: ClassifySettings, rows: Rows) -> tuple[ClassificationSettings, dict[str, Any]]:
        labels = sorted({label for row in rows.labelled for label in row.fields[1].split()})
        require_labels(labels, settings.rows)
        (self.tokens, self.targets), (self.held_out, self.expected) = (
            read_labels(part, labels, self.like.tokenizer, self.longest) for part in (rows.learned, rows.held_out)
        )
        layers = ClassificationSettings(labels=tuple(labels), activation="softmax", dense_activation=None)
        return layers, {"kind": "labels of tokens", "labels": labels}

    def evaluate(self) -> dict[str, float]:
        """The percent of words whose best label is right; and the loss."""
        right = words = 0
        loss = 0.0
        with torch.inference_mode():
            for places in batches_by_length(self.held_out.lengths):
                logits = run(self.encoder, self.held_out.batch(places).to(self.device)).float().cpu()
                targets = [self.expected[place] for place in places]
                expected = _padded(targets)
                labelled = expected != UNLABELLED
                right += int((logits.argmax(dim=2) == expected)[labelled].sum())
                count = int(labelled.sum())
                loss += count * float(self._loss(logits, targets))
                words += count
        return {"accuracy": 100 * right / max(words, 1), "loss": loss / max(words, 1)}

    def _loss(self, logits: Tensor, targets: Sequence[Tensor]) -> Tensor:
        """Cross entropy, the mean over words; 0 where no word has a token."""
        expected = _padded(targets).to(logits.device)
        total = cross_entropy(logits.flatten(0, 1), expected.flatten(), ignore_index=UNLABELLED, reduction="sum")
        return total / (expected != UNLABELLED).sum().clamp(min=1)


def read_labels(
    rows: Sequence[Row], labels: Sequence[str], tokenizer: Tokenizer, longest: int
) -> tuple[TokenIds, list[Tensor]]:
    """Token ids of each row, and each token's label as a number; `UNLABELLED` of all but a word's first token.

    DataError for a row that has other labels than words, or a label that was not learned from.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(longest)
    ids, targets = [], []
    for row in rows:
        words, own = row.fields[0].split(), row.fields[1].split()
        if len(words) != len(own):
            raise DataError(f"{row.place}: {len(words)} words and {len(own)} labels; expected a label a word")
        if unknown := [label for label in own if label not in numbers]:
            raise DataError(f"{row.place}: label {unknown[0][:40]!r} is none of those learned from")
        encoding = cutting.encode(" ".join(words))
        word_at = [number for number, word in enumerate(words) for _ in range(len(word) + 1)]  # by character
        target, before = torch.full((len(encoding.ids),), UNLABELLED), -1
        for place, ((start, end), special) in enumerate(
            zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        ):
            if special or end <= start:
                continue
            word = word_at[end - 1]  # a token may begin with the space before its word
            if word != before:
                target[place] = numbers[own[word]]
            before = word
        ids.append(encoding.ids)
        targets.append(target)
    return TokenIds(ids), targets


def require_labels(labels: Sequence[str], path: Path, hint: str = "") -> None:
    """Raises DataError unless there are 2 to 1,000 labels."""
    if not 2 <= len(labels) <= MOST_LABELS:
        raise DataError(f"{path}: {len(labels)} different labels; expected 2 to {MOST_LABELS}{hint}")


def _padded(targets: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(targets), batch_first=True, padding_value=UNLABELLED)


def read_scores(parts: Sequence[Sequence[Row]], path: Path) -> tuple[list[Tensor], dict[str, Any]]:
    """Scores of each part, float32 [rows], put on 0 to 1 by the range of the first part's; and that range.

    DataError for a score that is no number, and if a part's are all alike.
    """
    scores = [list(map(_score, part)) for part in parts]
    low, high = min(scores[0]), max(scores[0])
    if low == high:
        raise DataError(f"{path}: every score is {low:g}; nothing can be learned from that")
    if len(set(scores[1])) == 1:
        raise DataError(f"{path}: every held-out score is {scores[1][0]:g}: give other rows with --held-out")
    found = [torch.tensor([(score - low) / (high - low) for score in part]) for part in scores]
    return found, {"kind": "scores", "low": low, "high": high}


def _score(row: Row) -> float:
    with suppress(ValueError):
        if math.isfinite(value := float(row.fields[-1])):
            return value
    raise DataError(f"{row.place}: the score is {row.fields[-1].strip()[:40]!r}, expected a number")


def _places(rows: Sequence[Row], labels: Sequence[str]) -> Tensor:
    """Each row's label as its place among the names, int64 [rows]."""
    places = {label: place for place, label in enumerate(labels)}
    for row in rows:
        if row.fields[-1].strip() not in places:
            raise DataError(f"{row.place}: label {row.fields[-1][:40]!r} is none of those learned from")
    return torch.tensor([places[row.fields[-1].strip()] for row in rows])
