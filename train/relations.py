"""Relations between tokens that a student learns of its teacher (MiniLMv2, Wang et al. 2021, arXiv 2012.15828).

What tokens are to each other in a layer's queries, keys and values is a distribution over the tokens of a text,
whatever the size of a head. So a student of other heads, or of fewer, can learn it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div
from torch.nn.utils.rnn import pad_sequence

from model.encoder import Encoder
from train.embedding import encoder_layers
from train.losses import alone

PROJECTIONS = ("query", "key", "value")
MOST_RELATION_HEADS = 48  # as the paper has them


@contextmanager
def last_projections(encoder: Encoder) -> Iterator[dict[str, Tensor]]:
    """While this holds, the dictionary has the last run's queries, keys and values [T, ...].

    They are of the last layer with heads. Where no layer has any, the dictionary stays empty.
    """
    found: dict[str, Tensor] = {}
    layers = [layer for layer in encoder_layers(encoder) if layer.attention.num_heads]

    def keeping(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _module, _inputs, output: found.__setitem__(name, output)

    hooks = [getattr(layers[-1].attention, name).register_forward_hook(keeping(name)) for name in PROJECTIONS if layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def relation_loss(
    student: dict[str, Tensor],
    teacher: dict[str, Tensor],
    lengths: Sequence[int],
    total: Callable[[Tensor], Tensor] = alone,
) -> Tensor:
    """Kullback-Leibler divergence of the student's relations from the teacher's, mean over tokens, heads and kinds.

    Args:
        student: queries, keys and values [T, ...] of the texts' tokens, one text behind the other.
        teacher: the same, of other widths.
        lengths: tokens of each text; they add up to T.
        total: sums over processes that hold some of the texts each.
    """
    losses = []
    for name in PROJECTIONS:
        own, whole = student[name].float(), teacher[name].float()
        heads = relation_heads(own.shape[1], whole.shape[1])
        divergence = kl_div(
            log_relations(own, lengths, heads), log_relations(whole, lengths, heads), reduction="none", log_target=True
        )  # [B, R, S, S]
        tokens = total(whole.new_tensor(float(len(whole))))
        losses.append(total(divergence[_are_tokens(lengths, heads, divergence.device)].sum()) / (tokens * heads))
    return torch.stack(losses).mean()


def relation_heads(own: int, whole: int) -> int:
    """R: the most heads, up to 48, that both widths can be cut into."""
    common = math.gcd(own, whole)
    return max(heads for heads in range(1, min(common, MOST_RELATION_HEADS) + 1) if common % heads == 0)


def log_relations(projected: Tensor, lengths: Sequence[int], heads: int) -> Tensor:
    """Logarithms [B, R, S, S] of each token's distribution over the tokens of its text; padding has no weight.

    Args:
        projected: [T, R*W].
        lengths: tokens of each text.
        heads: R.
    """
    rows = pad_sequence(list(torch.split(projected, list(lengths))), batch_first=True)  # [B, S, R*W]
    cut = rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)  # [B, R, S, W]
    scores = cut @ cut.transpose(2, 3) / math.sqrt(cut.shape[-1])
    least = torch.finfo(scores.dtype).min
    return scores.masked_fill(~_columns(lengths, rows.shape[1], rows.device), least).log_softmax(dim=-1)


def _columns(lengths: Sequence[int], longest: int, device: torch.device) -> Tensor:
    """Bool [B, 1, 1, S], where a text has a token."""
    ends = torch.tensor(list(lengths), device=device)
    return (torch.arange(longest, device=device) < ends[:, None])[:, None, None]


def _are_tokens(lengths: Sequence[int], heads: int, device: torch.device) -> Tensor:
    """Bool [B, R, S, S], where both a query and a key are tokens of a text."""
    are = _columns(lengths, max(lengths), device)
    return (are & are.transpose(2, 3)).expand(-1, heads, -1, -1)
