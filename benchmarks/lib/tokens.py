"""Texts as token ids, and the ways to put them into batches.

The tokenizer is the artifact's own, so a token here is what the service counts: special tokens included, cut at the
model's longest input.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from model.artifact import TOKENIZER, Artifact
from service.inference.backend import Batch

TokenIds = Sequence[int]
SORTED_TOKENS = (384, 1024)  # padded tokens of a sorted batch
Plan = list[list[int]]  # which texts go into which run


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


def text_of_tokens(tokenizer: Tokenizer, words: Iterable[str], count: int) -> str:
    """The words that fit, joined: a text of exactly so many tokens, special ones included.

    Args:
        tokenizer: one that cuts no earlier than past `count`.
        words: taken in order; one that would make the text too long is left out.
        count: tokens wanted.

    Raises:
        ValueError: the words came to fewer tokens.
    """
    text, tokens = "", 0
    for word in words:
        longer = f"{text} {word}".lstrip()
        if (found := len(tokenizer.encode(longer).ids)) <= count:
            text, tokens = longer, found
        if tokens == count:
            return text
    raise ValueError(f"the words come to {tokens} tokens, expected {count}")


def make_batch(rows: Sequence[TokenIds], attention_layers: tuple[int, ...] = ()) -> Batch:
    """One right-padded batch `[B, S]` of the given rows."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    input_ids = np.zeros((len(rows), int(lengths.max())), dtype=np.int64)
    for index, row in enumerate(rows):
        input_ids[index, : len(row)] = row
    return Batch(input_ids=input_ids, lengths=lengths, attention_layers=attention_layers)


def one_at_a_time(rows: Sequence[TokenIds]) -> Plan:
    """A run a text, in the given order: no padding at all."""
    return [[index] for index in range(len(rows))]


def in_arrival_order(rows: Sequence[TokenIds], batch_size: int) -> Plan:
    """Runs of a fixed number of texts as they come."""
    indices = range(len(rows))
    return [list(indices[start : start + batch_size]) for start in range(0, len(rows), batch_size)]


def sorted_by_length(rows: Sequence[TokenIds], max_padded_tokens: int) -> Plan:
    """Longest texts first, as many a run as fit the budget of padded tokens (at least one)."""
    plan: Plan = []
    for index in sorted(range(len(rows)), key=lambda index: len(rows[index]), reverse=True):
        if plan and len(rows[plan[-1][0]]) * (len(plan[-1]) + 1) <= max_padded_tokens:
            plan[-1].append(index)
        else:
            plan.append([index])
    return plan


def standard_plans(rows: Sequence[TokenIds]) -> dict[str, Plan]:
    """The plans that every engine is measured on: no padding at all, and little padding with larger products.

    Two sizes, since engines differ in what suits them: the larger one amortises more, the smaller one's activations
    stay nearer to the core.
    """
    plans = {f"sorted, {tokens} tokens": sorted_by_length(rows, tokens) for tokens in SORTED_TOKENS}
    return {"one text a run": one_at_a_time(rows), **plans}


def make_batches(rows: Sequence[TokenIds], plan: Plan) -> list[Batch]:
    """The batches of a plan."""
    return [make_batch([rows[index] for index in run]) for run in plan]


def of_shape(stream: Iterable[int], batch_size: int, sequence_length: int) -> Batch:
    """A full batch `[B, S]` without padding, cut from a running stream of real tokens."""
    ids = np.fromiter(stream, dtype=np.int64, count=batch_size * sequence_length)
    lengths = np.full(batch_size, sequence_length, dtype=np.int64)
    return Batch(input_ids=ids.reshape(batch_size, sequence_length), lengths=lengths)
