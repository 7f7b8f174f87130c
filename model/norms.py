"""The two norms of an encoder, over the last dimension."""

from torch import nn

from model.config import EncoderConfig, Norm


def make_norm(kind: Norm, size: int, *, eps: float, bias: bool) -> nn.Module:
    """LayerNorm (Ba et al. 2016), with or without its bias, or RMSNorm (Zhang and Sennrich 2019), which has none."""
    return nn.RMSNorm(size, eps=eps) if kind == "rms_norm" else nn.LayerNorm(size, eps=eps, bias=bias)


def norm_of(config: EncoderConfig, size: int | None = None) -> nn.Module:
    """A norm of the kind that a network has, of its width unless said otherwise."""
    return make_norm(config.norm, size or config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)
