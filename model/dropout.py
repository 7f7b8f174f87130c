"""Dropout that is not there unless a network is being trained with it, so that no graph holds a trace of it."""

from torch import Tensor, nn
from torch.nn import functional


class Dropout(nn.Module):
    """Zeroes a share of the values in training and scales the rest (Srivastava et al. 2014); `share` is 0 at first.

    The share belongs to a training run, not to the network: `EncoderConfig` does not know it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.share = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return functional.dropout(x, self.share) if self.training and self.share else x
