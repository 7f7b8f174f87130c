"""The two norms of an encoder, over the last dimension."""

from torch import nn

from model.config import Norm


def make_norm(kind: Norm, size: int, *, eps: float, bias: bool) -> nn.Module:
    """LayerNorm (Ba et al. 2016), with or without its bias, or RMSNorm (Zhang and Sennrich 2019), which has none."""
    return nn.RMSNorm(size, eps=eps) if kind == "rms_norm" else nn.LayerNorm(size, eps=eps, bias=bias)
