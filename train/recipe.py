"""What the loop asks of a training command."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from export.checkpoint import Checkpoint
from model.encoder import Encoder
from train.parallel import Processes


class Recipe(Protocol):
    """What is trained on what, and how it is judged.

    Attributes:
        command: its name on the command line.
        module: everything with parameters: the network, and what is trained beside it.
        encoder: the network itself.
        like: the checkpoint whose tokenizer, length and defaults the network keeps.
        lengths: tokens of each example; their number is that of the examples.
        score: the name of the figure of `evaluate` by which the best network is kept; larger is better.
        rate_factors: factor on the learning rate of parts of the module, by the first part of a parameter's name.
        processes: which share every batch; the loop sets it.
        described: for the record: data with hashes, where the network came from, what was done before training.
    """

    command: str
    module: nn.Module
    encoder: Encoder
    like: Checkpoint
    lengths: Sequence[int]
    score: str
    rate_factors: Mapping[str, float]
    processes: Processes
    described: Mapping[str, Any]

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """Adds the gradient of a batch's mean loss to the parameters', and returns the loss.

        Of several processes each adds the part that its own examples have, and returns the whole batch's loss.

        Args:
            places: the examples.
            step: counted from 0; decides what is drawn.
            share: of the run that is over, for what changes along it.
        """
        ...

    def network(self) -> Encoder:
        """The network that is written and judged, as it stands."""
        ...

    def findings(self) -> dict[str, Any]:
        """What the run has found so far beside weights, for the record."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Figures of the network as it stands, on examples that are not trained on."""
        ...


def parameter_groups(recipe: Recipe, *, weight_decay: float, embedding_rate: float) -> list[dict[str, Any]]:
    """Parameters for AdamW: matrices decay, biases and norms do not, embeddings have a rate of their own.

    `scale` is the factor on the learning rate; what it is 0 for is not trained.
    """
    embeddings = {id(parameter) for parameter in recipe.encoder.embeddings.parameters() if parameter.ndim > 1}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in recipe.module.named_parameters():
        scale = embedding_rate if id(parameter) in embeddings else recipe.rate_factors.get(name.partition(".")[0], 1.0)
        if not scale:
            parameter.requires_grad_(False)  # else its gradient is computed for nothing
        decays = parameter.ndim > 1 and id(parameter) not in embeddings
        if parameter.requires_grad:
            groups.setdefault((scale, weight_decay if decays else 0.0), []).append(parameter)
    return [{"params": own, "weight_decay": decay, "scale": scale} for (scale, decay), own in groups.items()]
