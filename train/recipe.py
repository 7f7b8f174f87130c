"""What the loop asks of a training command."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from export.checkpoint import Checkpoint
from model.encoder import Encoder


class Recipe(Protocol):
    """What is trained on what, and how it is judged.

    Attributes:
        command: its name on the command line.
        module: everything with parameters: the network, and what is trained beside it.
        encoder: the network itself.
        like: the checkpoint whose tokenizer, length and defaults the network keeps.
        lengths: tokens of each example; their number is that of the examples.
        score: the name of the figure of `evaluate` by which the best network is kept; larger is better.
        described: for the record: data with hashes, where the network came from, what was done before training.
    """

    command: str
    module: nn.Module
    encoder: Encoder
    like: Checkpoint
    lengths: Sequence[int]
    score: str
    described: Mapping[str, Any]

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """Adds the gradient of a batch's mean loss to the parameters', and returns the loss.

        Args:
            places: the examples.
            step: counted from 0; decides what is drawn.
            share: of the run that is over, for what changes along it.
        """
        ...

    def network(self) -> Encoder:
        """The network that is written and judged, as it stands."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Figures of the network as it stands, on examples that are not trained on."""
        ...


def parameter_groups(recipe: Recipe, *, weight_decay: float, embedding_rate: float) -> Iterator[dict[str, Any]]:
    """Parameters for AdamW: matrices decay, biases and norms do not, embeddings have a rate of their own.

    `scale` is the factor on the learning rate.
    """
    embeddings = {id(parameter) for parameter in recipe.encoder.embeddings.parameters() if parameter.ndim > 1}
    trained = [parameter for parameter in recipe.module.parameters() if parameter.requires_grad]
    if embedding_rate:
        rows = [parameter for parameter in trained if id(parameter) in embeddings]
        yield {"params": rows, "weight_decay": 0.0, "scale": embedding_rate}
    others = [parameter for parameter in trained if id(parameter) not in embeddings]
    yield {"params": [p for p in others if p.ndim > 1], "weight_decay": weight_decay, "scale": 1.0}
    yield {"params": [p for p in others if p.ndim <= 1], "weight_decay": 0.0, "scale": 1.0}
