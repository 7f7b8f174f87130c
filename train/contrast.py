"""Trains an embedder on pairs that belong together, or triples with a text that does not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.checkpoint import require_embedding
from export.heads.subject import find_subject
from export.pruning.removal import remove_heads
from model.encoder import Encoder
from train.contrastive import backward_in_chunks, info_nce, same_texts
from train.data.batching import tokenize_texts
from train.data.rows import read_parts
from train.data.text_files import Row
from train.embedding import embed_ids, run
from train.errors import RunError
from train.parallel import ALONE, Processes
from train.settings import RunSettings
from train.similarity import recall

LONGEST = 128
MOST_NEGATIVES = 8  # of a row


@dataclass(frozen=True, kw_only=True, slots=True)
class ContrastSettings:
    """What is learned from what.

    Attributes:
        model: artifact, folder or hub id; None for the default model.
        rows: file of anchor, positive, and optionally negatives.
        held_out: rows to judge by; None for a part of `rows`.
        scale: factor on cosines.
        chunk: rows in memory at a time; 0 for all of a batch.
        dimensions: sizes at which vectors may be cut; empty for the whole ones alone.
    """

    model: str | None
    rows: Path
    held_out: Path | None = None
    scale: float = 20.0
    chunk: int = 0
    dimensions: tuple[int, ...] = ()


class Contrast:
    """The recipe of `polyhead train contrast`."""

    command = "contrast"
    score = "recall_at_10"
    rate_factors: Mapping[str, float] = {}
    processes: Processes = ALONE

    def __init__(self, settings: ContrastSettings, run_settings: RunSettings) -> None:
        """Reads everything.

        Raises:
            SourceError: the model or a file cannot be used.
            RunError: vectors are to be cut where they end already.
        """
        negatives = tuple(f"negative_{index}" for index in range(1, MOST_NEGATIVES + 1))
        rows = read_parts(settings.rows, settings.held_out, ("anchor", "positive"), optional=negatives)
        self.like = find_subject(settings.model).checkpoint
        require_embedding(self.like, "pairs are compared")
        self.settings = settings
        self.device = torch.device(run_settings.device)
        self.encoder: Encoder = remove_heads(self.like.encoder, ()).requires_grad_(True).to(self.device)
        self.module: nn.Module = self.encoder
        if outside := [size for size in settings.dimensions if size > self.encoder.config.embedding_size]:
            raise RunError(f"vectors have {self.encoder.config.embedding_size} dimensions: none to cut at {outside[0]}")
        longest = min(LONGEST, self.like.max_sequence_length)
        self.rows = [row.fields for row in rows.learned]
        texts = list(dict.fromkeys(text for fields in self.rows for text in fields))
        self.numbers = {text: number for number, text in enumerate(texts)}
        self.tokens = tokenize_texts(texts, self.like.tokenizer, longest)
        each = self.tokens.lengths
        self.lengths: Sequence[int] = [sum(each[self.numbers[text]] for text in fields) for fields in self.rows]
        self.queries, self.documents = (
            tokenize_texts(_column(rows.held_out, column), self.like.tokenizer, longest) for column in (0, 1)
        )
        chosen = {"scale": settings.scale, "dimensions": list(settings.dimensions)}
        self.described: Mapping[str, Any] = {**rows.described, "contrast": chosen}

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """The gradient of InfoNCE over a batch of rows."""
        del step, share
        rows = [self.rows[place] for place in places]
        anchors = [fields[0] for fields in rows]
        candidates = [fields[1] for fields in rows] + [text for fields in rows for text in fields[2:]]
        texts = [self.numbers[text] for text in (*anchors, *candidates)]
        same = same_texts(candidates, len(anchors)).to(self.device)

        def loss_of(embeddings: Tensor) -> Tensor:
            left, right = embeddings[: len(anchors)].float(), embeddings[len(anchors) :].float()
            return info_nce(left, right, same, scale=self.settings.scale, dimensions=self.settings.dimensions)

        def embed(part: Sequence[int]) -> Tensor:
            return run(self.encoder, self.tokens.batch([texts[index] for index in part]).to(self.device))

        return backward_in_chunks(embed, len(texts), self.settings.chunk or len(texts), loss_of, self.processes)

    def network(self) -> Encoder:
        """The network as it stands."""
        return self.encoder

    def findings(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def evaluate(self) -> dict[str, float]:
        """Percent of the held-out anchors that find their positive among the ten nearest."""
        queries, documents = (embed_ids(self.encoder, side, self.device) for side in (self.queries, self.documents))
        return {"recall_at_1": recall(queries, documents, depth=1), "recall_at_10": recall(queries, documents)}


def _column(rows: Sequence[Row], column: int) -> list[str]:
    return [row.fields[column] for row in rows]
