"""The encoder in float64, which a graph is verified against; of a large one a single layer at a time.

A whole copy in float64 takes twice the weights' bytes, 4.8 GB of a network of 600 million parameters. A large network
keeps its float32 weights instead. Each layer is widened when it runs and let go of behind that, and of the token
embeddings the rows that are looked up. Every float32 is a float64, so both references give the same bits.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from model.embeddings import Embeddings
from model.encoder import Encoder
from model.tasks.definition import Encoded

LARGE = 1 << 30  # bytes of weights; smaller networks are copied, since widening a layer for every batch takes time


def float64_reference(encoder: Encoder) -> Encoder:
    """An encoder that computes the same in float64, on weights of its own or, of a large one, on the given one's.

    Args:
        encoder: float32, in evaluation mode.
    """
    if sum(parameter.nbytes for parameter in encoder.parameters()) < LARGE:
        return copy.deepcopy(encoder).double()
    return widened_by_layer(encoder)


def widened_by_layer(encoder: Encoder) -> Encoder:
    """An encoder in float64 whose layers are widened when they are reached."""
    with torch.device("meta"):
        made = Encoder(encoder.config)
    made.embeddings = _widened_embeddings(encoder)
    made.positions = widen(encoder.positions)
    made.layers = WidenedLayers(encoder.layers)
    made.final_norm = widen(encoder.final_norm)
    made.task_layers = widen(encoder.task_layers)
    if encoder.config.task == "sparse":
        made.task_layers = WidenedTable(made.task_layers)
    return made.eval()


class WidenedLayers(nn.ModuleList):
    """Layers of which each is widened to float64 when it is asked for, and belongs to whoever asked."""

    def __iter__(self) -> Iterator[Any]:
        """One after the other."""
        return map(widen, self.children())

    def __getitem__(self, index: Any) -> Any:
        """One by its number."""
        return widen(super().__getitem__(index))


class WidenedTable(nn.Module):
    """A task's layers in float64 that get the token embeddings in float64 too, as a sparse task's need them."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, encoded: Encoded) -> Any:
        """As the layers' own."""
        return self.layers(encoded._replace(token_embeddings=encoded.token_embeddings.double()))


class WidenedRows(nn.Module):
    """Token embeddings whose rows are widened behind the look-up."""

    def __init__(self, narrow: nn.Embedding) -> None:
        super().__init__()
        self.narrow = narrow

    @property
    def weight(self) -> Tensor:
        """The table itself, in float32."""
        return self.narrow.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        """int64 [T] -> float64 [T, D]."""
        rows: Tensor = self.narrow(input_ids)
        return rows.double()


def widen(module: nn.Module) -> Any:
    """A copy in float64."""
    return copy.deepcopy(module).double()


def _widened_embeddings(encoder: Encoder) -> Embeddings:
    """The embeddings in float64 without the table of tokens, which is looked up in as it is."""
    embeddings = encoder.embeddings
    made = copy.deepcopy(embeddings, {id(embeddings.token): None}).double()
    made.token = WidenedRows(embeddings.token)  # type: ignore[assignment]  # looked up as an nn.Embedding is
    return made
