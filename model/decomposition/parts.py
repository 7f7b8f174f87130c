"""Parts of every token's vector, one for each source, through a network whose non-linear steps are fixed.

    X[i, i] = the embedding layer's output of token i                                  at the start, all others 0
    X'[i, k] = sum over h, j of A_h[i, j] (X[j, k] W_V,h) W_O,h + X[i, k]              attention
    X'[i, k] = (X[i, k] - mean of X[i, k]) / sd_i * gamma                              norm
    X'[i, k] = (X[i, k] W_1 * factor_i) W_2 + X[i, k]                                  feed-forward

A source is a token of the input or, behind them, all biases of the network. Parts of all sources add up to the hidden
state at every step (DecompX, Modarressi et al. 2023; its steps: Kobayashi et al. 2021, Ferrando et al. 2022). N is the
number of sources; other letters as in `model.config`.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.decomposition.frozen import FrozenLayer, FrozenNorm
from model.encoder import EncoderLayer


class Sources(NamedTuple):
    """Whose parts are computed.

    Attributes:
        tokens: int64, places in the text.
        with_biases: whether the network's biases are one more source, the last.
    """

    tokens: Tensor
    with_biases: bool

    def start(self, embedded: Tensor) -> Tensor:
        """The first parts, from the embedding layer's output [S, D] -> [S, N, D]."""
        places = torch.arange(embedded.shape[0], device=embedded.device)
        is_own = (places[:, None] == self.tokens).to(embedded.dtype)  # [S, tokens]
        if self.with_biases:
            is_own = nn.functional.pad(is_own, (0, 1))
        return is_own[:, :, None] * embedded[:, None]

    def own(self, parts: Tensor) -> Tensor:
        """What is left of each token in its own vector: parts [S, N, D] -> [tokens, D]."""
        return parts[self.tokens, torch.arange(self.tokens.shape[0], device=parts.device)]

    def add_bias(self, parts: Tensor, bias: Tensor | None) -> Tensor:
        """A bias [C] added to the biases' parts of [..., N, C]."""
        if bias is None or not self.with_biases:
            return parts
        return torch.cat((parts[..., :-1, :], parts[..., -1:, :] + bias), dim=-2)

    def linear(self, module: nn.Linear, parts: Tensor) -> Tensor:
        """A linear layer on parts [..., N, C]."""
        rows = nn.functional.linear(parts.reshape(-1, parts.shape[-1]), module.weight)  # two dimensions: one `Gemm`
        return self.add_bias(rows.view(*parts.shape[:-1], -1), module.bias)

    def norm(self, norm: FrozenNorm, parts: Tensor) -> Tensor:
        """A norm on parts [S, N, D] with S deviations, or on [N, D] with N or one."""
        if norm.reciprocal is None or norm.weight is None:
            return parts
        centred = parts - parts.mean(dim=-1, keepdim=True) if norm.is_centred else parts
        scale = norm.reciprocal[..., None] * norm.weight
        return self.add_bias(centred * (scale[..., None, :] if scale.dim() < parts.dim() else scale), norm.bias)

    def layer(
        self, layer: EncoderLayer, frozen: FrozenLayer, parts: Tensor, first_values: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """One layer, [S, N, D] -> [S, N, D], and the parts of its values [S, N, G*V] for a value residual."""
        read = self.norm(frozen.attention_norm, parts) if layer.pre_norm else parts
        values = self.values(layer, frozen, read, first_values)
        middle = self.after_attention(layer, frozen, parts, self.attended(layer, frozen, read, values))
        added = self.linear(layer.feed_forward.down, self.inner(layer, frozen, middle))
        return self.after_feed_forward(layer, frozen, middle, added), values

    def after_attention(self, layer: EncoderLayer, frozen: FrozenLayer, parts: Tensor, attended: Tensor) -> Tensor:
        """The residual stream behind attention, [S, N, D]."""
        middle = parts + self.norm(frozen.attention_output_norm, attended)
        return middle if layer.pre_norm else self.norm(frozen.attention_norm, middle)

    def inner(self, layer: EncoderLayer, frozen: FrozenLayer, middle: Tensor) -> Tensor:
        """Between the feed-forward's products, [S, N, D] -> [S, N, intermediate]."""
        expanded = self.norm(frozen.feed_forward_norm, middle) if layer.pre_norm else middle
        factors = frozen.feed_forward
        return self.linear(layer.feed_forward.up, expanded) * (factors[:, None] if factors.dim() < 3 else factors)

    def after_feed_forward(self, layer: EncoderLayer, frozen: FrozenLayer, middle: Tensor, added: Tensor) -> Tensor:
        """What the layer gives, [S, N, D], from what its feed-forward adds."""
        last = middle + self.norm(frozen.feed_forward_output_norm, added)
        return last if layer.pre_norm else self.norm(frozen.feed_forward_norm, last)

    def values(
        self, layer: EncoderLayer, frozen: FrozenLayer, read: Tensor, first_values: Tensor | None
    ) -> Tensor | None:
        """[S, N, G*V]; None of a layer without heads."""
        if not layer.attention.num_heads:
            return None
        projected = self.linear(layer.attention.value, read)
        own = projected if frozen.values is None else projected * frozen.values[:, None]
        return layer.attention.stream.mix_with(first_values, own)

    def attended(self, layer: EncoderLayer, frozen: FrozenLayer, read: Tensor, values: Tensor | None) -> Tensor:
        """What attention adds, [S, N, D]."""
        if values is None:
            return self.add_bias(torch.zeros_like(read), layer.attention.output_bias)
        heads, (size, count) = layer.attention.num_heads, values.shape[:2]
        of_heads = (
            layer.attention.per_query_head(values)
            .view(size, count, heads, -1)
            .permute(2, 0, 1, 3)
            .reshape(heads, size, -1)
        )  # [H, S, N*V]
        context = (frozen.weights @ of_heads).view(heads, size, count, -1).permute(1, 2, 0, 3)  # [S, N, H, V]
        return self.linear(layer.attention.output, context.flatten(2))
