"""The encoder in float64, which a graph is verified against; of a large one a single layer at a time.

A whole copy in float64 takes twice the weights' bytes, 4.8 GB of a network of 600 million parameters. A large network
keeps its float32 weights instead. Each layer is widened when it runs and let go of behind that, and of the token
embeddings the rows that are looked up. Every float32 is a float64, so both references give the same bits.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from model.embeddings import Embeddings
from model.encoder import Encoder, EncoderLayer
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
    """An encoder in float64 of which one layer is in memory at a time."""
    with torch.device("meta"):
        made = Encoder(encoder.config)
    made.embeddings = _widened_embeddings(encoder)
    made.positions = copy.deepcopy(encoder.positions).double()
    made.layers = nn.ModuleList(WidenedLayer(layer) for layer in encoder.layers)
    made.final_norm = Widened(encoder.final_norm)
    made.task_layers = WidenedTaskLayers(encoder)
    return made.eval()


class Widened(nn.Module):
    """A module that is widened to float64 whenever it runs."""

    def __init__(self, narrow: nn.Module) -> None:
        super().__init__()
        self.narrow = narrow

    def forward(self, *inputs: Any) -> Any:
        """As the module's own."""
        return widen(self.narrow)(*inputs)


class WidenedLayer(EncoderLayer):
    """A layer that is widened to float64 whenever it runs; other layers may ask for its values too."""

    def __init__(self, narrow: nn.Module) -> None:
        nn.Module.__init__(self)
        self.narrow = narrow

    def forward(self, *inputs: Any) -> Any:
        """As the layer's own."""
        return widen(self.narrow)(*inputs)

    def values(self, hidden: Tensor) -> Tensor:
        """As the layer's own."""
        found: Tensor = widen(self.narrow).values(hidden)
        return found


class WidenedTaskLayers(Widened):
    """A task's layers; a sparse task multiplies by the token embeddings, which it gets in float64 too."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder.task_layers)
        self.reads_table = encoder.config.task == "sparse"

    def forward(self, encoded: Encoded) -> Any:
        """As the layers' own."""
        if self.reads_table:
            encoded = encoded._replace(token_embeddings=encoded.token_embeddings.double())
        return super().forward(encoded)


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
