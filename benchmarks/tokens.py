"""Texts as token ids, and the ways to put them into batches.

The tokenizer is the artifact's own, so a token here is what the service counts: special tokens included, cut at the
model's longest input.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from model.artifact import TOKENIZER, Artifact
from service.backend import Batch

TokenIds = list[int]


def load_tokenizer(path: Path, max_sequence_length: int) -> Tokenizer:
    """A tokenizer that truncates and never pads."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_sequence_length)
    return tokenizer


def tokenize(artifact: Artifact, texts: Sequence[str]) -> list[TokenIds]:
    """Token ids of each text, special tokens included."""
    tokenizer = load_tokenizer(artifact.path(TOKENIZER), artifact.manifest.max_sequence_length)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def make_batch(rows: Sequence[TokenIds], attention_layers: tuple[int, ...] = ()) -> Batch:
    """One right-padded batch `[B, S]` of the given rows."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    input_ids = np.zeros((len(rows), int(lengths.max())), dtype=np.int64)
    for index, row in enumerate(rows):
        input_ids[index, : len(row)] = row
    return Batch(input_ids=input_ids, lengths=lengths, attention_layers=attention_layers)


def one_at_a_time(rows: Iterable[TokenIds]) -> list[Batch]:
    """A batch a text, in the given order: no padding at all."""
    return [make_batch([row]) for row in rows]


def in_arrival_order(rows: Sequence[TokenIds], batch_size: int) -> list[Batch]:
    """Batches of a fixed number of texts as they come, padded to the longest of each."""
    return [make_batch(rows[start : start + batch_size]) for start in range(0, len(rows), batch_size)]


def sorted_by_length(rows: Sequence[TokenIds], max_padded_tokens: int) -> list[Batch]:
    """Longest texts first, as many a batch as fit the budget of padded tokens (at least one)."""
    batches: list[Batch] = []
    pending: list[TokenIds] = []
    for row in sorted(rows, key=len, reverse=True):
        if pending and len(pending[0]) * (len(pending) + 1) > max_padded_tokens:
            batches.append(make_batch(pending))
            pending = []
        pending.append(row)
    return [*batches, make_batch(pending)] if pending else batches


def of_shape(stream: Iterable[int], batch_size: int, sequence_length: int) -> Batch:
    """A full batch `[B, S]` without padding, cut from a running stream of real tokens."""
    ids = np.fromiter(stream, dtype=np.int64, count=batch_size * sequence_length)
    lengths = np.full(batch_size, sequence_length, dtype=np.int64)
    return Batch(input_ids=ids.reshape(batch_size, sequence_length), lengths=lengths)
