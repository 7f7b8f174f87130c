"""The configuration that fully describes an encoder network.

Standard library only: the service reads it from the manifest without torch. It does not know where weights come from,
nor how text becomes token ids.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from model.config_checks import (
    ConfigError,
    check_heads,
    check_kept_heads,
    check_positions,
    check_shared_layers,
    check_value_stream,
    require,
    require_choice,
    require_flag,
    require_positive,
)
from model.config_parts import Projection, RopeScaling, read_parts, rename_older
from model.tasks.settings import Task, TaskSettings, check_task, read_settings

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Norm = Literal["layer_norm", "rms_norm"]
Positions = Literal["learned", "sinusoidal", "none"]
AttentionPositions = Literal["none", "rotary", "alibi", "relative"]
Pooling = Literal["mean", "cls", "max", "last"]
ValueActivation = Literal["identity", "gelu", "gelu_tanh", "relu", "silu"]

_CHOICES = {
    "activation": Activation,
    "norm": Norm,
    "positions": Positions,
    "attention_positions": AttentionPositions,
    "pooling": Pooling,
    "value_activation": ValueActivation,
}
_ZERO_FOR_NONE = ("type_vocab_size", "token_size", "original_heads", "relative_buckets", "relative_distance")
_FLAGS = (
    *("gated", "up_bias", "down_bias", "attention_bias", "output_bias"),
    *("norm_bias", "pre_norm", "embedding_norm", "first_attention_norm", "sandwich_norm", "final_norm"),
    *("query_key_norm", "causal", "learned_value_residual", "output_gate"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """Everything needed to build an encoder; with weights of the matching shapes it is the network.

    Shape letters, here and everywhere: B batch, S sequence, D hidden, H heads, K = d_k, V = d_v, L layers.

    Attributes:
        vocab_size: rows of the token embedding.
        hidden_size: D, the width of the residual stream.
        num_heads: heads of each layer, first layer first; its length is L. 0 is legal: such a layer's attention adds
            its output bias only.
        num_key_value_heads: key and value heads of each layer, each read by as many query heads, which stand side by
            side (Ainslie et al. 2023, grouped queries); empty: every query head has its own. What is called a head
            elsewhere is a query head.
        query_groups: how many query heads read each key and value head, a layer, where they differ; empty: as many.
        d_k: size of one query or key head. Free of `hidden_size / num_heads` (Vaswani et al. 2017, table 3 B).
        d_v: size of one value head, free of `d_k`.
        score_scale: factor on the scores before the softmax; None: 1 / sqrt(d_k).
        query_key_norm: whether every query and key head is normed by an RMSNorm, before positions turn it.
        intermediate_size: width of the feed-forward layer.
        max_positions: the longest sequence the network can take; rows of the learned position embedding.
        type_vocab_size: rows of the token type embedding; 0 where the family has none.
        token_size: width of the embeddings and their norm where a product takes them to D; 0 where they have D.
        activation: feed-forward non-linearity.
        gated: `down(activation(gate(x)) * up(x))` in place of `down(activation(up(x)))`: GeGLU with GELU, SwiGLU with
            SiLU (Shazeer 2020).
        up_bias: whether the feed-forward's first products have a bias.
        down_bias: whether its last product has one.
        attention_bias: whether the query, key and value projections have biases.
        output_bias: whether the attention's output projection has one.
        norm: LayerNorm, or RMSNorm (Zhang and Sennrich 2019), which has no bias.
        norm_bias: whether every LayerNorm has a bias.
        norm_eps: epsilon of every norm.
        pre_norm: norms stand before attention and feed-forward (x + f(norm(x))), not after (norm(x + f(x))).
        embedding_norm: whether the sum of the embeddings is normed.
        first_attention_norm: False where the first layer of a pre-norm network attends without a norm before it.
        sandwich_norm: whether what attention and feed-forward add is normed too: x + norm(f(norm(x))).
        final_norm: whether the last layer's output is normed.
        positions: what is added to the embedding, learned rows or sinusoids (Vaswani et al. 2017, section 3.5).
        attention_positions: what positions change inside attention. `rotary` (Su et al. 2021) turns queries and keys;
            `alibi` (Press et al. 2022, in both directions) and `relative` (Raffel et al. 2020, buckets of distances
            shared by the layers) add to the scores.
        causal: whether a token sees itself and those before it only.
        rope_theta: base of the rotary frequencies, theta^(-2i/K) for i < K/2.
        rope_divisor: what every rotary frequency is divided by (position interpolation).
        rope_scaling: how frequencies are changed for longer texts than the first trained on; None: not.
        local_rope_theta: the base in local layers; None: the same.
        local_layers: layers whose attention is local, ascending.
        window: how many tokens away, on either side, a local layer's query sees; None where no layer is local.
        relative_buckets: rows of the relative bias.
        relative_distance: distance from which all keys share the last bucket.
        original_heads: heads a layer that a bias a head (`alibi`, `relative`) was made for, where layers lost some;
            else 0.
        kept_heads: which of those each layer kept, ascending; empty where original_heads is 0.
        value_activation: applied to the values before they are weighed; see `model.value_stream` for this and the next.
        value_residual: a and b of `V_l <- a V_1 + b V_l` a layer, the first layer's (0, 1); empty for none.
        learned_value_residual: whether a and b are parameters that begin at `value_residual`.
        output_gate: whether each head's context is multiplied by a sigmoid of the layer's input.
        head_dropout: share of heads left out in training; nothing is left out otherwise.
        pooling: how `last_hidden_state [B, S, D]` becomes one vector a text, of an embedding and of a classification.
        projections: dense layers after pooling, an embedding's, the first one first.
        shared_layers: of each layer the first one that has the same weights; empty: each has its own.
        task: what stands on the encoder; `model.tasks.settings` names the graph's output for each.
        task_settings: describes the task's layers; None for an embedding.
    """

    vocab_size: int
    hidden_size: int
    num_heads: tuple[int, ...]
    d_k: int
    d_v: int
    intermediate_size: int
    max_positions: int
    num_key_value_heads: tuple[int, ...] = ()
    query_groups: tuple[tuple[int, ...], ...] = ()
    score_scale: float | None = None
    query_key_norm: bool = False
    type_vocab_size: int = 0
    token_size: int = 0
    activation: Activation = "gelu"
    gated: bool = False
    up_bias: bool = True
    down_bias: bool = True
    attention_bias: bool = True
    output_bias: bool = True
    norm: Norm = "layer_norm"
    norm_bias: bool = True
    norm_eps: float = 1e-12
    pre_norm: bool = False
    embedding_norm: bool = True
    first_attention_norm: bool = True
    sandwich_norm: bool = False
    final_norm: bool = False
    positions: Positions = "learned"
    attention_positions: AttentionPositions = "none"
    causal: bool = False
    rope_theta: float = 10000.0
    rope_divisor: float = 1.0
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float | None = None
    local_layers: tuple[int, ...] = ()
    window: int | None = None
    relative_buckets: int = 32
    relative_distance: int = 128
    original_heads: int = 0
    kept_heads: tuple[tuple[int, ...], ...] = ()
    value_activation: ValueActivation = "identity"
    value_residual: tuple[tuple[float, float], ...] = ()
    learned_value_residual: bool = False
    output_gate: bool = False
    head_dropout: float = 0.0
    pooling: Pooling = "mean"
    projections: tuple[Projection, ...] = ()
    shared_layers: tuple[int, ...] = ()
    task: Task = "embedding"
    task_settings: TaskSettings | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "d_k", "d_v", "intermediate_size", "max_positions"):
            require(name, getattr(self, name), minimum=1)
        for name in _ZERO_FOR_NONE:
            require(name, getattr(self, name), minimum=0)
        check_heads(self)
        for name, kind in _CHOICES.items():
            require_choice(name, getattr(self, name), get_args(kind))
        for name in _FLAGS:
            require_flag(name, getattr(self, name))
        for name in ("norm_eps", "rope_theta", "rope_divisor"):
            require_positive(name, getattr(self, name))
        for name in ("local_rope_theta", "score_scale"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        if self.sandwich_norm and not self.pre_norm:
            raise ConfigError("sandwich_norm is a second norm behind those of pre_norm: set both")
        check_positions(self)
        check_kept_heads(self)
        check_value_stream(self)
        check_shared_layers(self)
        check_task(self)

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.num_heads)

    def groups(self, layer: int) -> tuple[int, ...]:
        """How many query heads read each key and value head of a layer."""
        if self.query_groups:
            return self.query_groups[layer]
        heads = self.num_heads[layer]
        shared = self.num_key_value_heads[layer] if self.num_key_value_heads else heads
        return (heads // shared,) * shared if shared else ()

    def head_span(self, layer: int) -> slice:
        """Which of all heads, counted from the first layer's first, are a layer's."""
        first = sum(self.num_heads[:layer])
        return slice(first, first + self.num_heads[layer])

    def head_place(self, head: int) -> tuple[int, int]:
        """Layer and index within it of a head counted from the first layer's first: `head_span` the other way."""
        layer = next(layer for layer in range(self.num_layers) if head < self.head_span(layer).stop)
        return layer, head - self.head_span(layer).start

    @property
    def embedding_size(self) -> int:
        """Width of `pooled`: the last projection's size where there is one, else D."""
        return self.projections[-1].size if self.projections else self.hidden_size

    @property
    def output_size(self) -> int:
        """Size of the last dimension of the task's output."""
        return self.embedding_size if self.task_settings is None else self.task_settings.output_size(self)

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON types; `from_dict` reverses it."""
        return {name: _as_lists(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "EncoderConfig":
        """Reads what `to_dict` wrote, now or before a field was added: what is absent has its neutral value.

        Raises:
            ConfigError: a field is unknown, missing or out of range.
        """
        known = {field.name for field in fields(cls)}
        data = rename_older(data)
        if unknown := sorted(set(data) - known):
            raise ConfigError(f"unknown fields {', '.join(unknown)}: this version knows {', '.join(sorted(known))}")
        try:
            values = read_parts(data)
            values["task_settings"] = read_settings(values.get("task"), values.get("task_settings"))
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"incomplete encoder configuration: {error}") from error


def _as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_lists(item) for name, item in value.items()}
    return [_as_lists(item) for item in value] if isinstance(value, tuple) else value
