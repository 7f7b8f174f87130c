"""The encoder network, top to bottom: embeddings, L post-norm layers, pooling, an optional projection.

It knows an `EncoderConfig` and tensors; it does not know checkpoints, tokenizers or ONNX. Shape letters as in
`model.config`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.attention import Implementation, MultiHeadAttention
from model.config import Activation, EncoderConfig
from model.gating import LayerRequest, check_gates
from model.packing import Packing, packing
from model.pooling import POOLINGS

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "relu": functional.relu,
        "silu": functional.silu,
    }
)


class EncoderOutput(NamedTuple):
    """What one forward pass gives.

    Attributes:
        pooled: [B, D], before truncation to fewer dimensions and before normalisation.
        last_hidden_state: [B, S, D]; rows at or after a text's length repeat its last token.
        attentions: one a layer, [B, H_l, S, S], or None where the implementation has none.
    """

    pooled: Tensor
    last_hidden_state: Tensor
    attentions: tuple[Tensor | None, ...]


class Embeddings(nn.Module):
    """Token + learned position + token type, then LayerNorm."""

    def __init__(
        self, *, vocab_size: int, max_positions: int, type_vocab_size: int, hidden_size: int, norm_eps: float
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, hidden_size)
        self.position = nn.Embedding(max_positions, hidden_size)
        self.token_type = nn.Embedding(type_vocab_size, hidden_size) if type_vocab_size else None
        self.norm = nn.LayerNorm(hidden_size, eps=norm_eps)

    def forward(self, input_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Token ids, positions and token types (None for all 0), each int64 [T] -> [T, D]."""
        hidden = self.token(input_ids)
        if self.token_type is not None:
            hidden = hidden + self.token_type(torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids)
        normed: Tensor = self.norm(hidden + self.position(positions))
        return normed


class FeedForward(nn.Module):
    """Two linear maps with an activation between them."""

    def __init__(self, *, hidden_size: int, intermediate_size: int, activation: Activation) -> None:
        super().__init__()
        self.up = nn.Linear(hidden_size, intermediate_size)
        self.down = nn.Linear(intermediate_size, hidden_size)
        self.activation_name = activation
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        down: Tensor = self.down(self.activation(self.up(hidden)))
        return down


class EncoderLayer(nn.Module):
    """One post-norm layer: x <- norm(x + attention(x)), x <- norm(x + feed_forward(x))."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            hidden_size=config.hidden_size, num_heads=config.num_heads[layer], d_k=config.d_k, d_v=config.d_v
        )
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.feed_forward = FeedForward(
            hidden_size=config.hidden_size, intermediate_size=config.intermediate_size, activation=config.activation
        )
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)

    def forward(self, hidden: Tensor, tokens: Packing, request: LayerRequest) -> tuple[Tensor, Tensor | None]:
        """[T, D] -> [T, D] and this layer's weights [B, H, S, S] or None."""
        attended, weights = self.attention(hidden, tokens, request)
        hidden = self.attention_norm(hidden + attended)
        hidden = self.feed_forward_norm(hidden + self.feed_forward(hidden))
        return hidden, weights


class Encoder(nn.Module):
    """The network an `EncoderConfig` describes, with freshly drawn weights until a state is loaded."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(
            vocab_size=config.vocab_size,
            max_positions=config.max_positions,
            type_vocab_size=config.type_vocab_size,
            hidden_size=config.hidden_size,
            norm_eps=config.norm_eps,
        )
        self.layers = nn.ModuleList(EncoderLayer(config, layer) for layer in range(config.num_layers))
        self.projection: nn.Linear | None = None
        if config.projection:
            self.projection = nn.Linear(config.hidden_size, config.projection.size, bias=config.projection.bias)

    def use(self, implementation: Implementation) -> "Encoder":
        """Sets the attention implementation of every layer, and returns the encoder."""
        for module in self.modules():
            if hasattr(module, "implementation"):
                setattr(module, "implementation", implementation)  # noqa: B010 - torch types attributes as tensors
        return self

    def forward(
        self,
        input_ids: Tensor,
        lengths: Tensor,
        attention_layers: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        head_gates: Tensor | None = None,
    ) -> EncoderOutput:
        """Encodes a right-padded batch.

        Args:
            input_ids: int64 [B, S].
            lengths: int64 [B], real tokens a row; at least one of them above 0.
            attention_layers: bool [L], the layers whose weights will be read; None for none. The `onnx` implementation
                computes those only; `eager` returns all regardless, `sdpa` none.
            token_type_ids: int64 [B, S]; None for all 0.
            head_gates: [B, sum of all layers' heads], first layer first (`EncoderConfig.head_span` says which columns
                are a layer's): factors on what each head adds, a row a text. 1 leaves a head as it is, 0 removes it
                with its value bias. None for none. Differentiable.

        Returns:
            See `EncoderOutput`.

        Raises:
            ValueError: `head_gates` of another shape.
        """
        if head_gates is not None:
            check_gates(head_gates, len(lengths), self.config.num_heads)
        if attention_layers is None:
            attention_layers = torch.zeros(len(self.layers), dtype=torch.bool, device=input_ids.device)
        tokens = packing(lengths, input_ids.shape[1])
        types = None if token_type_ids is None else tokens.pack(token_type_ids)
        hidden = self.embeddings(tokens.pack(input_ids), tokens.positions(), types)
        attentions: list[Tensor | None] = []
        for index, (layer, wanted) in enumerate(zip(self.layers, attention_layers.unbind(), strict=True)):
            request = LayerRequest(wanted, head_gates, self.config.head_span(index).start)
            hidden, weights = layer(hidden, tokens, request)
            attentions.append(weights)
        last_hidden_state = tokens.pad(hidden)
        return EncoderOutput(self._pool(last_hidden_state, lengths), last_hidden_state, tuple(attentions))

    def _pool(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        pooled = POOLINGS[self.config.pooling](hidden, lengths)
        if self.projection is None or self.config.projection is None:
            return pooled
        projected: Tensor = self.projection(pooled)
        return projected.tanh() if self.config.projection.activation == "tanh" else projected
