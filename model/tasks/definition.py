"""What a task says of itself: its layers, and whether its output is a text's or a token's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from model.config import EncoderConfig
from model.packing import Packing


class Encoded(NamedTuple):
    """What a task's layers read.

    Attributes:
        hidden: [T, D], the last layer's output of the real tokens.
        last_hidden_state: [B, S, D], the same in rows; padding repeats a text's last token.
        tokens: where the real tokens stand.
        token_embeddings: [vocabulary, D or token_size], the table that the network begins with.
    """

    hidden: Tensor
    last_hidden_state: Tensor
    tokens: Packing
    token_embeddings: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDefinition:
    """A task, whole but for its settings, which stand in `model.tasks.settings`.

    Attributes:
        make_layers: the module that maps `Encoded` to the task's output.
        is_per_token: whether the output is [B, S, ...], of which only real tokens count; else it is [B, ...].
    """

    make_layers: Callable[[EncoderConfig], nn.Module]
    is_per_token: bool
