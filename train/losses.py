"""What a student is pulled towards: its teacher's vectors, the similarities between them, its hidden states."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize


def cosine_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over texts of 1 - cos, [B, D] each."""
    return (1 - (normalize(student, dim=-1) * normalize(teacher, dim=-1)).sum(dim=-1)).mean()


def similarity_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of the cosines between the texts of a batch, [B, D] each."""
    own, whole = normalize(student, dim=-1), normalize(teacher, dim=-1)
    return ((own @ own.T - whole @ whole.T) ** 2).mean()


def alone(part: Tensor) -> Tensor:
    """The sum over processes where there is one."""
    return part


def hidden_loss(
    student: Sequence[Tensor], teacher: Sequence[Tensor], total: Callable[[Tensor], Tensor] = alone
) -> Tensor:
    """Squared error of hidden states [T, D] over their variance across tokens, mean over layers.

    0 is equality, 1 what the mean of all tokens would reach, in every layer alike. `total` sums over processes that
    hold some of the tokens each.
    """
    shares = []
    for own, whole in zip(student, teacher, strict=True):
        tokens = total(whole.new_tensor(float(len(whole))))
        mean = total(whole.sum(dim=0)) / tokens
        variance = total((whole - mean).square().sum()).clamp(min=1e-12)
        shares.append(total((own - whole).square().sum()) / variance)
    return torch.stack(shares).mean()
