"""The configuration that fully describes an encoder network.

Standard library only: the service reads it from the manifest without torch. It does not know where weights come from,
nor how text becomes token ids.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from model.config_parts import (
    MOST_LAYERS,
    SETTINGS,
    ClassificationSettings,
    ConfigError,
    Count,
    MultiVectorSettings,
    Positive,
    Projection,
    QueryExpansion,
    RopeScaling,
    Size,
    SparseSettings,
    Task,
    TaskSettings,
    check_fields,
    is_number,
    read_settings,
    require,
)
from model.json_types import JsonTypeError, read_fields

LARGEST_TABLE = 1 << 28  # values, a gigabyte
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Norm = Literal["layer_norm", "rms_norm"]
Positions = Literal["learned", "sinusoidal", "none"]
AttentionPositions = Literal["none", "rotary", "alibi", "relative", "disentangled"]
PositionScore = Literal["content_to_position", "position_to_content"]
Pooling = Literal["mean", "cls", "max", "last"]
ValueActivation = Literal["identity", "gelu", "gelu_tanh", "relu", "silu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """Everything needed to build an encoder; with weights of the matching shapes it is the network.

    Shape letters, here and everywhere: B batch, S sequence, D hidden, H heads, K = d_k, V = d_v, L layers.
    """

    vocab_size: Size  # rows of the token embedding
    hidden_size: Size  # D, the width of the residual stream
    # heads of each layer, first layer first; its length is L. 0 is legal: such a layer's attention adds its output bias
    # only.
    num_heads: tuple[Count, ...]
    d_k: Size  # size of one query or key head. Free of `hidden_size / num_heads` (Vaswani et al. 2017, table 3 B).
    d_v: Size  # size of one value head, free of `d_k`
    intermediate_size: Size  # width of the feed-forward layer
    max_positions: Size  # the longest sequence the network can take; rows of the learned position embedding
    # key and value heads of each layer, each read by as many query heads, which stand side by side (Ainslie et al.
    # 2023, grouped queries); empty: every query head has its own. What is called a head elsewhere is a query head.
    num_key_value_heads: tuple[Count, ...] = ()
    # how many query heads read each key and value head, a layer if they differ; empty: as many
    query_groups: tuple[tuple[Size, ...], ...] = ()
    # of each layer's if they differ; empty: `intermediate_size` in every layer
    intermediate_sizes: tuple[Size, ...] = ()
    score_scale: Positive | None = None  # factor on the scores before the softmax; None: 1 / sqrt(d_k)
    query_key_norm: bool = False  # whether every query and key head is normed by an RMSNorm, before positions turn it
    query_key_layer_norm: bool = False  # whether queries, and keys, are normed by a LayerNorm over all heads together
    # whether what attention gives, added and normed, is added and normed once more: norm(x + norm(x + f(x)))
    attention_residual_norm: bool = False
    value_norm: bool = False  # whether every value head is normed by an RMSNorm without weights
    local_head_size: Count = 0  # d_k and d_v of local layers, if other than elsewhere; 0: the same
    # width of the signals that each token's embedding sends to every layer (`model.layers.LayerSignals`); 0: none
    layer_signal_size: Count = 0
    type_vocab_size: Count = 0  # rows of the token type embedding; 0 where the family has none
    token_size: Count = 0  # width of the embeddings and their norm where a product takes them to D; 0 if that is D
    activation: Activation = "gelu"  # feed-forward non-linearity
    # `down(activation(gate(x)) * up(x))` instead of `down(activation(up(x)))`: GeGLU with GELU, SwiGLU with SiLU
    # (Shazeer 2020)
    gated: bool = False
    # whether the feed-forward's first products, and its last, have biases
    up_bias: bool = True
    down_bias: bool = True
    # whether the query, key and value projections, and attention's output, have them
    attention_bias: bool = True
    output_bias: bool = True
    norm: Norm = "layer_norm"  # LayerNorm, or RMSNorm (Zhang and Sennrich 2019), which has no bias
    norm_bias: bool = True  # whether every LayerNorm has a bias
    norm_eps: Positive = 1e-12  # epsilon of every norm
    pre_norm: bool = False  # norms stand before attention and feed-forward (x + f(norm(x))), not after (norm(x + f(x)))
    embedding_norm: bool = True  # whether the sum of the embeddings is normed
    # False where the first layer of a pre-norm network attends without a norm before it
    first_attention_norm: bool = True
    sandwich_norm: bool = False  # whether what attention and feed-forward add is normed too: x + norm(f(norm(x)))
    final_norm: bool = False  # whether the last layer's output is normed
    # added to the embedding: learned rows or sinusoids (Vaswani et al. 2017, section 3.5)
    positions: Positions = "learned"
    # what positions change inside attention. `rotary` (Su et al. 2021) turns queries and keys; `alibi` (Press et al.
    # 2022, in both directions) and `relative` (Raffel et al. 2020, buckets of distances shared by the layers) add to
    # the scores. `disentangled` (He et al. 2021) adds products of queries and keys with vectors of distances, a table a
    # layer.
    attention_positions: AttentionPositions = "none"
    causal: bool = False  # whether a token sees itself and those before it only
    rope_theta: Positive = 10000.0  # base of the rotary frequencies, theta^(-2i/K) for i < K/2
    rope_divisor: Positive = 1.0  # what every rotary frequency is divided by (position interpolation)
    # how frequencies are changed for longer texts than the first trained on; None: not
    rope_scaling: RopeScaling | None = None
    local_rope_theta: Positive | None = None  # the base in local layers; None: the same
    local_layers: tuple[int, ...] = ()  # layers whose attention is local, ascending
    # how many tokens away, on either side, a local layer's query sees; None where no layer is local
    window: Count | None = None
    relative_buckets: Count = 32  # rows of the relative bias, or of the tables of distances
    # distance from which all keys share the last bucket; of disentangled positions 0 if every distance has a row
    relative_distance: Count = 128
    # which products disentangled positions add: each query's with the keys of distances (`content_to_position`), and
    # each key's with the queries of distances (`position_to_content`)
    position_scores: tuple[PositionScore, ...] = ()
    # heads a layer that a bias a head (`alibi`, `relative`) was made for, where layers lost some; else 0
    original_heads: Count = 0
    # which of those each layer kept, ascending; empty where original_heads is 0
    kept_heads: tuple[tuple[int, ...], ...] = ()
    # applied to the values before they are weighed; see `model.value_stream` for this and the next
    value_activation: ValueActivation = "identity"
    # a and b of `V_l <- a V_1 + b V_l` a layer, the first layer's (0, 1); empty for none
    value_residual: tuple[tuple[float, float], ...] = ()
    learned_value_residual: bool = False  # whether a and b are parameters that begin at `value_residual`
    output_gate: bool = False  # whether each head's context is multiplied by a sigmoid of the layer's input
    head_dropout: float = 0.0  # share of heads left out in training; nothing is left out otherwise
    # how `last_hidden_state [B, S, D]` becomes one vector a text, of an embedding and of a classification
    pooling: Pooling = "mean"
    projections: tuple[Projection, ...] = ()  # dense layers after pooling, an embedding's, the first one first
    # of each layer the first one that has the same weights; empty: each has its own
    shared_layers: tuple[Count, ...] = ()
    # the task of the layers behind the encoder; `model.config_parts` names the graph's output for each
    task: Task = "embedding"
    task_settings: TaskSettings | None = None  # describes the task's layers; None for an embedding

    def __post_init__(self) -> None:
        check_fields(self)
        _check_heads(self)
        if self.sandwich_norm and not self.pre_norm:
            raise ConfigError("sandwich_norm is a second norm behind those of pre_norm: set both")
        if self.attention_residual_norm and self.pre_norm:
            raise ConfigError("attention_residual_norm is a norm behind the one after attention: pre_norm has none")
        if self.query_key_layer_norm and self.query_key_norm:
            raise ConfigError("query_key_norm and query_key_layer_norm: set one of them")
        if self.local_head_size and (self.value_residual or self.shared_layers):
            raise ConfigError("local_head_size: value_residual and shared_layers need heads of one size")
        _check_positions(self)
        _check_kept_heads(self)
        _check_value_stream(self)
        _check_shared_layers(self)
        _check_task(self)

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

    def head_sizes(self, layer: int) -> tuple[int, int]:
        """d_k and d_v of a layer."""
        is_own = self.local_head_size and layer in self.local_layers
        return (self.local_head_size, self.local_head_size) if is_own else (self.d_k, self.d_v)

    @property
    def reaches(self) -> tuple[int, ...]:
        """How many tokens away, on either side, a query of each layer sees."""
        local = self.max_positions if self.window is None else self.window
        return tuple(local if layer in self.local_layers else self.max_positions for layer in range(self.num_layers))

    @property
    def is_decomposable(self) -> bool:
        """Whether the layers have only parts that `model.decomposition` takes apart."""
        return not (self.attention_residual_norm or self.value_norm or self.layer_signal_size)

    def inner_size(self, layer: int) -> int:
        """Width of a layer's feed-forward."""
        return self.intermediate_sizes[layer] if self.intermediate_sizes else self.intermediate_size

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
        """Width of `pooled`: the last projection's size if there is one, else D."""
        return self.projections[-1].size if self.projections else self.hidden_size

    @property
    def has_unseen_tokens(self) -> bool:
        """Whether rows may end in tokens whose keys no token sees: the graph then has one more input of lengths."""
        expansion = getattr(self.task_settings, "query_expansion", None)
        return expansion is not None and not expansion.attend

    @property
    def output_size(self) -> int:
        """Size of the last dimension of the task's output."""
        match self.task_settings:
            case ClassificationSettings(labels=labels):
                return len(labels)
            case SparseSettings():
                return self.vocab_size
            case MultiVectorSettings(size=size):
                return size
        return self.embedding_size

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON writes it; `from_dict` reverses it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "EncoderConfig":
        """Reads what `to_dict` wrote, now or before a field was added: what is absent has its neutral value.

        Raises:
            ConfigError: a field is unknown, missing or out of range.
        """
        known, data = {field.name for field in fields(cls)}, dict(data)
        if "projection" in data and "projections" not in data:  # there was one once
            one = data.pop("projection")
            data["projections"] = [] if one is None else [one]
        if unknown := sorted(set(data) - known):
            raise ConfigError(f"unknown fields {', '.join(unknown)}: this version knows {', '.join(sorted(known))}")
        try:
            settings = read_settings(data.get("task"), data.pop("task_settings", None))
            return cls(**read_fields(data, cls), task_settings=settings)
        except JsonTypeError as error:
            raise ConfigError(f"incomplete encoder configuration: {error}") from error


def _check_heads(config: EncoderConfig) -> None:
    if not 1 <= len(config.num_heads) <= MOST_LAYERS:
        found = f"has {len(config.num_heads)} layers" if config.num_heads else "is empty"
        raise ConfigError(f"num_heads {found}: give one head count a layer, from 1 to {MOST_LAYERS} layers")
    for layer, heads in enumerate(config.num_heads):
        if heads > config.hidden_size:
            raise ConfigError(f"num_heads[{layer}] is {heads}: at most hidden_size = {config.hidden_size} heads")
    for name in ("num_key_value_heads", "intermediate_sizes"):
        if (layers := len(getattr(config, name))) not in (0, config.num_layers):
            raise ConfigError(f"{name} has {layers} layers, num_heads {config.num_layers}")
    if config.query_groups and len(config.query_groups) != len(config.num_key_value_heads):
        raise ConfigError(f"query_groups has {len(config.query_groups)} layers: expected those of num_key_value_heads")
    for layer, (heads, shared) in enumerate(zip(config.num_heads, config.num_key_value_heads, strict=False)):
        _check_groups(config, layer, heads, shared)


def _check_groups(config: EncoderConfig, layer: int, heads: int, shared: int) -> None:
    require(f"num_key_value_heads[{layer}]", shared, minimum=min(heads, 1), maximum=heads)
    if config.query_groups:
        groups = config.query_groups[layer]
        if len(groups) != shared or sum(groups) != heads:
            raise ConfigError(f"query_groups[{layer}] is {list(groups)}: expected {shared} that sum to {heads}")
    elif shared and heads % shared:
        raise ConfigError(f"num_heads[{layer}] is {heads}: expected a multiple of its {shared} key and value heads")


def _check_positions(config: EncoderConfig) -> None:
    table = config.max_positions * max(
        config.d_k if config.attention_positions == "rotary" else 0,
        config.hidden_size if config.positions == "sinusoidal" else 0,
    )
    if table > LARGEST_TABLE:
        raise ConfigError(
            f"max_positions is {config.max_positions}: {table} values in a table of positions; at most {LARGEST_TABLE}"
        )
    for name in ("d_k", "local_head_size"):
        if config.attention_positions == "rotary" and getattr(config, name) % 2:
            raise ConfigError(f"{name} is {getattr(config, name)}: rotary positions turn pairs, so it must be even")
    if config.attention_positions == "relative" and (config.relative_buckets < 4 or config.relative_buckets % 2):
        raise ConfigError(f"relative_buckets is {config.relative_buckets}: expected an even number of at least 4")
    if config.attention_positions == "relative" and config.relative_distance <= config.relative_buckets // 4:
        raise ConfigError(
            f"relative_distance is {config.relative_distance}: expected more than {config.relative_buckets // 4}, the "
            "distances that have a bucket of their own"
        )
    if config.rope_scaling and config.rope_divisor != 1:
        raise ConfigError("rope_divisor and rope_scaling: set one of them")
    _check_disentangled(config)
    if list(config.local_layers) != sorted(set(config.local_layers) & set(range(config.num_layers))):
        raise ConfigError(
            f"local_layers is {list(config.local_layers)}: expected ascending layers of {config.num_layers}"
        )
    if (config.window is not None) != bool(config.local_layers):
        raise ConfigError("window and local_layers belong together: give both or neither")


def _check_disentangled(config: EncoderConfig) -> None:
    if (config.attention_positions == "disentangled") != bool(config.position_scores):
        raise ConfigError("position_scores and disentangled attention_positions belong together: give both or neither")
    if config.position_scores:
        if config.num_key_value_heads or config.relative_buckets < 2 or config.relative_buckets % 2:
            raise ConfigError(
                "disentangled positions need an even number of relative_buckets, and keys that one query head reads"
            )
        if config.causal or config.local_layers:
            raise ConfigError("disentangled positions hide no keys: they go with neither causal nor local_layers")


def _check_kept_heads(config: EncoderConfig) -> None:
    """A bias a head is made once for all layers, so a layer that lost heads must say which it kept."""
    if (
        config.attention_positions in ("alibi", "relative")
        and len(set(config.num_heads)) > 1
        and not config.original_heads
    ):
        raise ConfigError(f"with {config.attention_positions} positions layers that differ in heads need kept_heads")
    if bool(config.original_heads) != bool(config.kept_heads):
        raise ConfigError("original_heads and kept_heads belong together: give both or neither")
    if config.kept_heads and tuple(map(len, config.kept_heads)) != config.num_heads:
        raise ConfigError(f"kept_heads names {[len(kept) for kept in config.kept_heads]} heads, num_heads differs")
    for layer, kept in enumerate(config.kept_heads):
        if list(kept) != sorted(set(kept) & set(range(config.original_heads))):
            raise ConfigError(f"kept_heads[{layer}] is {list(kept)}: expected ascending, of {config.original_heads}")


def _check_value_stream(config: EncoderConfig) -> None:
    if not is_number(config.head_dropout) or not 0 <= config.head_dropout < 1:
        raise ConfigError(f"head_dropout is {config.head_dropout!r}: expected a share of at least 0 and below 1")
    if config.learned_value_residual and not config.value_residual:
        raise ConfigError("learned_value_residual needs value_residual: where its parameters begin")
    if not config.value_residual:
        return
    if len(config.value_residual) != config.num_layers or tuple(config.value_residual[0]) != (0, 1):
        raise ConfigError(f"value_residual: expected {config.num_layers} pairs, the first layer's (0, 1)")
    for layer, mix in enumerate(config.value_residual):
        if len(mix) != 2 or not all(map(is_number, mix)):
            raise ConfigError(f"value_residual[{layer}] is {mix!r}: expected two numbers, a and b")
    if len(set(config.num_heads)) > 1 or len(set(config.num_key_value_heads)) > 1 or not config.num_heads[0]:
        raise ConfigError("value_residual adds the first layer's heads to every layer's: all need as many, not 0")


def _check_shared_layers(config: EncoderConfig) -> None:
    if not config.shared_layers:
        return
    firsts = config.shared_layers
    if len(firsts) != config.num_layers or any(
        first > layer or firsts[first] != first for layer, first in enumerate(firsts)
    ):
        raise ConfigError(
            f"shared_layers is {list(firsts)}: expected {config.num_layers} layers, of each the first alike"
        )
    shapes = [(config.groups(layer), config.inner_size(layer)) for layer in range(config.num_layers)]
    if any(shapes[layer] != shapes[first] for layer, first in enumerate(firsts)):
        raise ConfigError("shared_layers: layers of one weight need the same heads and intermediate sizes")
    if config.value_residual or not config.first_attention_norm:
        raise ConfigError(
            "shared_layers: value_residual and first_attention_norm make the first layer unlike the others"
        )


def _check_task(config: EncoderConfig) -> None:
    expected = SETTINGS.get(config.task, type(None))
    if not isinstance(config.task_settings, expected):
        raise ConfigError(
            f"task {config.task} with task_settings {type(config.task_settings).__name__}: expected {expected.__name__}"
        )
    if config.task != "embedding" and config.projections:
        raise ConfigError(f"projections are dense layers after an embedding's pooling: task {config.task} has none")
    if any(projection.residual for projection in config.projections):
        raise ConfigError("projections.residual: only dense layers on tokens, of task multi_vector, may have one")
    if isinstance(config.task_settings, MultiVectorSettings) and config.task_settings.query_expansion:
        _check_expansion(config, config.task_settings.query_expansion)


def _check_expansion(config: EncoderConfig, expansion: QueryExpansion) -> None:
    require("query_expansion.token_id", expansion.token_id, minimum=0, maximum=config.vocab_size - 1)
    require("query_expansion.length", expansion.length, minimum=1, maximum=config.max_positions)
    if config.window is not None and not expansion.attend and expansion.length > config.window + 1:
        raise ConfigError(
            f"query_expansion.length is {expansion.length}: in layers with a window of {config.window} the last tokens "
            f"may see none of a short text; at most {config.window + 1}"
        )
    if config.causal:
        raise ConfigError("query_expansion: in a causal network no token of the text sees the tokens after it")
