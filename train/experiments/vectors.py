"""A recipe: a network learns vectors that were computed before the run. The teacher runs once for many students."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from export.checkpoint import Checkpoint
from model.encoder import Encoder
from train.data.batching import TokenIds
from train.embedding import embed_ids, run
from train.losses import cosine_loss, similarity_loss
from train.parallel import ALONE, Processes
from train.similarity import cosine_figures


class VectorTask(NamedTuple):
    """Texts with the vectors to learn.

    Attributes:
        tokens: of the texts to learn from.
        targets: their vectors, normalised [texts, D].
        held_out: of the texts to judge by.
        expected: their vectors.
        teacher: whose vectors these are.
    """

    tokens: TokenIds
    targets: Tensor
    held_out: TokenIds
    expected: Tensor
    teacher: Checkpoint


class Vectors:
    """Cosine to the vectors, and the similarities within a batch; parameters without gradient stay.

    Attributes: see `train.recipe.Recipe`.
    """

    command = "sweep"
    score = "cosine_mean"
    rate_factors: Mapping[str, float] = {}
    processes: Processes = ALONE
    described: Mapping[str, Any] = {}

    def __init__(self, encoder: Encoder, task: VectorTask, device: str) -> None:
        self.task, self.like, self.device = task, task.teacher, torch.device(device)
        self.encoder = encoder.to(self.device)
        self.module: nn.Module = self.encoder
        self.lengths: Sequence[int] = task.tokens.lengths

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """The gradient of the distance to the vectors."""
        del step, share
        target = self.task.targets[list(places)].to(self.device)
        found = run(self.encoder, self.task.tokens.batch(places).to(self.device)).float()
        loss = cosine_loss(found, target) + similarity_loss(found, target)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def evaluate(self) -> dict[str, float]:
        """Cosines to the vectors of texts that are not trained on."""
        return cosine_figures(embed_ids(self.encoder, self.task.held_out, self.device), self.task.expected)

    def network(self) -> Encoder:
        """The network as it stands."""
        return self.encoder

    def findings(self) -> dict[str, Any]:
        """Nothing."""
        return {}
