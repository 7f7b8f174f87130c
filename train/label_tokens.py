"""Trains labels of tokens: names in a text, parts of speech.

A row holds words and as many labels, both with spaces between. A word's first token has its label; its other tokens
learn nothing, and the service's `aggregation` `"first"` reads words in the same way.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from export.heads.subject import find_subject
from model.config_parts import ClassificationSettings
from train.batching import TokenIds
from train.classify import LONGEST, MOST_LABELS, ClassifySettings
from train.data import Row, read_parts
from train.distil import make_student
from train.embedding import batches_by_length, run
from train.errors import DataError
from train.loop import Recipe
from train.settings import RunSettings

UNLABELLED = -100  # cross_entropy leaves it out
COLUMNS = ("text", "labels")


class LabelTokens(Recipe):
    """The recipe of `polyhead train classify --level tokens`."""

    command = "classify"
    score = "accuracy"

    def __init__(self, settings: ClassifySettings, run_settings: RunSettings) -> None:
        """Reads everything, and puts a randomly initialised layer for the labels on the encoder.

        Raises:
            SourceError: the model or a file cannot be used.
            DataError: a row has other labels than words, or there are too few or too many labels.
        """
        rows = read_parts(settings.rows, settings.held_out, COLUMNS)
        self.like = find_subject(settings.model).checkpoint
        self.device = torch.device(run_settings.device)
        labels = sorted({label for row in rows.labelled for label in row.fields[1].split()})
        if not 2 <= len(labels) <= MOST_LABELS:
            raise DataError(f"{settings.rows}: {len(labels)} different labels; expected 2 to {MOST_LABELS}")
        layers = ClassificationSettings(labels=tuple(labels), activation="softmax", dense_activation=None)
        given = self.like.encoder.config
        config = replace(given, task="token_classification", task_settings=layers, projections=())
        student = make_student(config, self.like.encoder, range(config.num_layers), seed=run_settings.seed, parts=True)
        self.encoder = student.requires_grad_(True).to(self.device)
        self.module = self.encoder
        longest = min(LONGEST, self.like.max_sequence_length)
        parts = (rows.learned, rows.held_out)
        (self.tokens, self.targets), (self.held_out, self.expected) = (
            read_labels(part, labels, self.like.tokenizer, longest) for part in parts
        )
        self.lengths = self.tokens.lengths
        self.described = {**rows.described, "targets": {"kind": "labels of tokens", "labels": labels}}

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """The gradient of the cross entropy, the mean over words."""
        del step, share
        batch = self.tokens.batch(places).rows(self.processes.rows(len(places)))
        logits = self.processes.gather(run(self.encoder, batch.to(self.device)).float(), len(places))
        loss = _loss(logits, [self.targets[place] for place in places])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def evaluate(self) -> dict[str, float]:
        """The percent of words whose best label is right; and the loss."""
        right = words = 0
        loss = 0.0
        with torch.inference_mode():
            for places in batches_by_length(self.held_out.lengths):
                logits = run(self.encoder, self.held_out.batch(places).to(self.device)).float().cpu()
                expected = _padded([self.expected[place] for place in places])
                labelled = expected != UNLABELLED
                right += int((logits.argmax(dim=2) == expected)[labelled].sum())
                count = int(labelled.sum())
                loss += count * float(_loss(logits, [self.expected[place] for place in places]))
                words += count
        return {"accuracy": 100 * right / max(words, 1), "loss": loss / max(words, 1)}


def read_labels(
    rows: Sequence[Row], labels: Sequence[str], tokenizer: Tokenizer, longest: int
) -> tuple[TokenIds, list[Tensor]]:
    """Token ids of each row, and each token's label as a number; `UNLABELLED` of all but a word's first token.

    Raises:
        DataError: a row has other labels than words, or a label that was not learned from.
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


def _padded(targets: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(targets), batch_first=True, padding_value=UNLABELLED)


def _loss(logits: Tensor, targets: Sequence[Tensor]) -> Tensor:
    """Cross entropy, the mean over words; 0 where no word has a token."""
    expected = _padded(targets).to(logits.device)
    total = cross_entropy(logits.flatten(0, 1), expected.flatten(), ignore_index=UNLABELLED, reduction="sum")
    return total / (expected != UNLABELLED).sum().clamp(min=1)
