"""The encoder network, top to bottom: embeddings, L layers, and the layers of its task.

It knows an `EncoderConfig` and tensors; it does not know checkpoints, tokenizers or ONNX. `model.attention` has the
other half of a layer. Shape letters as in `model.config`; T real tokens of a packed batch.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.attention import Implementation, MultiHeadAttention
from model.config import EncoderConfig
from model.layers import Dropout, FeedForward, LayerSignals, SignalReader, norm_of
from model.packing import Packing, packing
from model.positions import AttentionPositions, PositionTerms, sinusoids
from model.tasks import TASKS, Encoded
from model.value_stream import HeadOutputs, LayerRequest, ValueStream, make_value_stream


class EncoderOutput(NamedTuple):
    """What one forward pass gives."""

    # what the task is for (`model.config_parts.OUTPUT_NAMES`), such as an embedding's [B, D] before truncation to fewer
    # dimensions and before normalisation; for a text of length 0 it means nothing
    task_output: Tensor
    # [B, S, D]; rows at or after a text's length repeat its last token, or hold another text's if it has none
    last_hidden_state: Tensor
    attentions: tuple[Tensor | None, ...]  # one a layer, [B, H_l, S, S], or None where the implementation has none
    # one a layer, [B, H_l, S], ||f(x_j)|| of `model.value_stream`; None where none were asked for
    value_norms: tuple[Tensor | None, ...]

    @property
    def pooled(self) -> Tensor:
        """An embedding's output, [B, D]."""
        return self.task_output


class Embeddings(nn.Module):
    """Token + position (learned or sinusoidal, if they belong here) + token type, a norm, and to D where narrower."""

    sinusoids: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size = config.token_size or config.hidden_size
        self.token = nn.Embedding(config.vocab_size, size)
        self.position = nn.Embedding(config.max_positions, size) if config.positions == "learned" else None
        self.has_sinusoids = config.positions == "sinusoidal"
        if self.has_sinusoids:
            self.register_buffer("sinusoids", sinusoids(config.max_positions, size), persistent=False)
        self.token_type = nn.Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        self.norm = norm_of(config, size) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout()
        self.to_hidden = nn.Linear(size, config.hidden_size) if config.token_size else None

    def forward(self, input_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Token ids, positions and token types (None for all 0), each int64 [T] -> [T, D]."""
        hidden = self.token(input_ids)
        if self.token_type is not None:
            hidden = hidden + self.token_type(torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids)
        if self.position is not None:
            hidden = hidden + self.position(positions)
        if self.has_sinusoids:
            hidden = hidden + self.sinusoids.index_select(0, positions)
        normed: Tensor = self.dropout(self.norm(hidden))
        return normed if self.to_hidden is None else self.to_hidden(normed)


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each added to the residual stream, with a norm after or before each."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.dropout = Dropout()
        d_k, d_v = config.head_sizes(layer)
        self.attention = MultiHeadAttention(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads[layer],
            d_k=d_k,
            d_v=d_v,
            groups=config.groups(layer),
            scale=config.score_scale,
            norm_eps=config.norm_eps if config.query_key_norm or config.query_key_layer_norm else None,
            norms_whole=config.query_key_layer_norm,
            value_norm_eps=config.norm_eps if config.value_norm else None,
            bias=config.attention_bias,
            output_bias=config.output_bias,
            stream=make_value_stream(config, layer),
            position_scores=config.position_scores,
            distance_rows=config.relative_buckets,
        )
        self.attention_norm = norm_of(config) if layer or config.first_attention_norm else nn.Identity()
        self.feed_forward = FeedForward(
            hidden_size=config.hidden_size,
            intermediate_size=config.inner_size(layer),
            activation=config.activation,
            gated=config.gated,
            up_bias=config.up_bias,
            down_bias=config.down_bias,
        )
        self.feed_forward_norm = norm_of(config)
        self.attention_residual_norm = norm_of(config) if config.attention_residual_norm else None
        self.attention_output_norm = norm_of(config) if config.sandwich_norm else nn.Identity()
        self.feed_forward_output_norm = norm_of(config) if config.sandwich_norm else nn.Identity()
        self.signal = SignalReader(config) if config.layer_signal_size else None

    def forward(
        self, hidden: Tensor, tokens: Packing, request: LayerRequest, terms: PositionTerms, signal: Tensor | None = None
    ) -> tuple[Tensor, HeadOutputs]:
        """[T, D], and the layer's signal [T, P] if there is one -> [T, D] and what this layer's heads show."""
        if self.pre_norm:
            attended, heads = self.attention(self.attention_norm(hidden), tokens, request, terms)
            hidden = hidden + self.dropout(self.attention_output_norm(attended))
            added = self.feed_forward(self.feed_forward_norm(hidden))
            hidden = hidden + self.dropout(self.feed_forward_output_norm(added))
        else:
            attended, heads = self.attention(hidden, tokens, request, terms)
            normed = self.attention_norm(hidden + self.dropout(attended))
            again = self.attention_residual_norm
            hidden = normed if again is None else again(hidden + normed)
            hidden = self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return hidden if self.signal is None else self.signal(hidden, signal), heads

    def values(self, hidden: Tensor) -> Tensor:
        """What this layer's attention would weigh, [T, D] -> [T, G*V]."""
        return self.attention.values(self.attention_norm(hidden) if self.pre_norm else hidden)


class Encoder(nn.Module):
    """The network an `EncoderConfig` describes, with freshly initialised weights until a state is loaded."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.positions = AttentionPositions(config)
        self.layer_signals = LayerSignals(config) if config.layer_signal_size else None
        self.layers = nn.ModuleList(EncoderLayer(config, layer) for layer in range(config.num_layers))
        self.final_norm = norm_of(config) if config.final_norm else nn.Identity()
        self.task_layers = TASKS[config.task](config)
        self.share_weights()

    def share_weights(self) -> "Encoder":
        """Gives layers that share weights the first one's parameters; needed again where a state was assigned."""
        for layer, first in enumerate(self.config.shared_layers):
            for name, parameter in list(self.layers[first].named_parameters()):
                module, _, own_name = name.rpartition(".")
                setattr(self.layers[layer].get_submodule(module), own_name, parameter)
        return self

    def use(self, implementation: Implementation, layers: Iterable[int] | None = None) -> "Encoder":
        """Sets the attention implementation of these layers, or of every one, and returns the encoder."""
        every = list(self.layers.children())
        parts = every if layers is None else [every[layer] for layer in layers]
        for module in (module for part in parts for module in part.modules()):
            if hasattr(module, "implementation"):
                setattr(module, "implementation", implementation)  # noqa: B010 - torch types attributes as tensors
        return self

    def set_dropout(self, *, hidden: float = 0.0, heads: float = 0.0) -> "Encoder":
        """Sets what training leaves out from now on, and returns the encoder; evaluation leaves out nothing.

        The share of `hidden` values is behind the embeddings, each attention and each feed-forward; that of `heads`
        takes the place of the configuration's.
        """
        for module in self.modules():
            if isinstance(module, Dropout):
                module.share = hidden
            elif isinstance(module, ValueStream):
                module.head_dropout = heads
        return self

    def forward(
        self,
        input_ids: Tensor,
        lengths: Tensor,
        attention_layers: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        head_gates: Tensor | None = None,
        norm_layers: Tensor | None = None,
        seen_lengths: Tensor | None = None,
    ) -> EncoderOutput:
        """Encodes a right-padded batch.

        Args:
            input_ids: int64 [B, S].
            lengths: int64 [B], real tokens a row; at least one of them above 0. A row of length 0 is padding as a
                whole: finite, and its embedding means nothing.
            attention_layers: bool [L], the layers whose weights will be read; None for none. The `onnx` implementation
                computes those only; `eager` returns all regardless, `sdpa` none.
            token_type_ids: int64 [B, S]; None for all 0.
            head_gates: [B, sum of all layers' heads], first layer first (`EncoderConfig.head_span` says which columns
                are a layer's): factors on what each head adds, a row a text. 1 leaves a head as it is, 0 removes it
                with its value bias. None for none. Differentiable.
            norm_layers: bool [L], the layers whose value norms are computed; None for none.
            seen_lengths: int64 [B], tokens a row whose keys are seen, if not all are: the tokens after them read the
                others and are read by none, as tokens of a query's expansion are.
        """
        if attention_layers is None:
            attention_layers = torch.zeros(len(self.layers), dtype=torch.bool, device=input_ids.device)
        tokens = packing(lengths, input_ids.shape[1], seen_lengths)
        types = None if token_type_ids is None else tokens.pack(token_type_ids)
        hidden = self.embeddings(tokens.pack(input_ids), tokens.positions(), types)
        requests = self._requests(attention_layers, norm_layers, head_gates, self.first_values(hidden))
        terms = self.position_terms(tokens, hidden.dtype)
        signals = () if self.layer_signals is None else (self.layer_signals(hidden),)
        shown: list[HeadOutputs] = []
        for layer, *given in zip(self.layers, requests, terms, *signals, strict=True):
            hidden, heads = layer(hidden, tokens, *given)
            shown.append(heads)
        hidden = self.final_norm(hidden)
        encoded = Encoded(hidden, tokens.pad(hidden), tokens, self.embeddings.token.weight)
        weights, norms = tuple(heads.weights for heads in shown), tuple(heads.value_norms for heads in shown)
        return EncoderOutput(self.task_layers(encoded), encoded.last_hidden_state, weights, norms)

    def _requests(
        self, attention_layers: Tensor, norm_layers: Tensor | None, gates: Tensor | None, first_values: Tensor | None
    ) -> list[LayerRequest]:
        norms = [None] * len(self.layers) if norm_layers is None else torch.split(norm_layers, 1)
        return [
            LayerRequest(
                weights=wanted,
                value_norms=norms[layer],
                head_gates=gates,
                first_head=self.config.head_span(layer).start,
                first_values=first_values if layer else None,
                values=None if layer else first_values,
            )
            for layer, wanted in enumerate(torch.split(attention_layers, 1))
        ]

    def first_values(self, hidden: Tensor) -> Tensor | None:
        """The first layer's values [T, G*V] from the embeddings, where other layers take a share of them."""
        first = self.layers[0]
        return first.values(hidden) if self.config.value_residual and isinstance(first, EncoderLayer) else None

    def position_terms(self, tokens: Packing, dtype: torch.dtype) -> list[PositionTerms]:
        """What positions change inside attention, a layer."""
        far, near = self.positions(tokens, dtype)
        terms = [near if layer in self.config.local_layers else far for layer in range(len(self.layers))]
        if not self.config.kept_heads:
            return terms
        return [own.of_heads(kept) for own, kept in zip(terms, self.config.kept_heads, strict=True)]
