"""What makes a configuration one that describes a network; `model.config` asks for each of these."""

import sys
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from model.config import EncoderConfig


LARGEST = 1 << 20  # of a size; the largest vocabularies in use have half as many tokens
MOST_LAYERS = 1024
LARGEST_TABLE = 1 << 28  # values, a gigabyte


class ConfigError(ValueError):
    """A configuration that describes no network: the message names the field, the value and what is allowed."""


def check_heads(config: "EncoderConfig") -> None:
    """Every layer has a number of heads, and as many key and value heads as can be shared out among them.

    Raises:
        ConfigError: naming the field, the value and what is allowed.
    """
    if not 1 <= len(config.num_heads) <= MOST_LAYERS:
        found = f"has {len(config.num_heads)} layers" if config.num_heads else "is empty"
        raise ConfigError(f"num_heads {found}: give one head count a layer, from 1 to {MOST_LAYERS} layers")
    for layer, heads in enumerate(config.num_heads):
        require(f"num_heads[{layer}]", heads, minimum=0)
        if heads > config.hidden_size:
            raise ConfigError(f"num_heads[{layer}] is {heads}: at most hidden_size = {config.hidden_size} heads")
    if config.num_key_value_heads and len(config.num_key_value_heads) != config.num_layers:
        raise ConfigError(
            f"num_key_value_heads has {len(config.num_key_value_heads)} layers, num_heads {config.num_layers}"
        )
    if config.query_groups and len(config.query_groups) != len(config.num_key_value_heads):
        raise ConfigError(f"query_groups has {len(config.query_groups)} layers: expected those of num_key_value_heads")
    for layer, (heads, shared) in enumerate(zip(config.num_heads, config.num_key_value_heads, strict=False)):
        _check_groups(config, layer, heads, shared)


def _check_groups(config: "EncoderConfig", layer: int, heads: int, shared: int) -> None:
    require(f"num_key_value_heads[{layer}]", shared, minimum=min(heads, 1), maximum=heads)
    if config.query_groups:
        groups = config.query_groups[layer]
        for index, size in enumerate(groups):
            require(f"query_groups[{layer}][{index}]", size, minimum=1)
        if len(groups) != shared or sum(groups) != heads:
            raise ConfigError(f"query_groups[{layer}] is {list(groups)}: expected {shared} that sum to {heads}")
    elif shared and heads % shared:
        raise ConfigError(f"num_heads[{layer}] is {heads}: expected a multiple of its {shared} key and value heads")


def check_positions(config: "EncoderConfig") -> None:
    """Positions inside attention have what they need, and local layers a window.

    Raises:
        ConfigError: naming the field, the value and what is allowed.
    """
    table = config.max_positions * max(
        config.d_k if config.attention_positions == "rotary" else 0,
        config.hidden_size if config.positions == "sinusoidal" else 0,
    )
    if table > LARGEST_TABLE:
        raise ConfigError(
            f"max_positions is {config.max_positions}: {table} values in a table of positions; at most {LARGEST_TABLE}"
        )
    if config.attention_positions == "rotary" and config.d_k % 2:
        raise ConfigError(f"d_k is {config.d_k}: rotary positions turn pairs, so it must be even")
    if config.attention_positions == "relative" and (config.relative_buckets < 4 or config.relative_buckets % 2):
        raise ConfigError(f"relative_buckets is {config.relative_buckets}: expected an even number of at least 4")
    if config.attention_positions == "relative" and config.relative_distance <= config.relative_buckets // 4:
        raise ConfigError(
            f"relative_distance is {config.relative_distance}: expected more than {config.relative_buckets // 4}, the "
            "distances that have a bucket of their own"
        )
    if list(config.local_layers) != sorted(set(config.local_layers) & set(range(config.num_layers))):
        raise ConfigError(
            f"local_layers is {list(config.local_layers)}: expected ascending layers of {config.num_layers}"
        )
    if (config.window is not None) != bool(config.local_layers):
        raise ConfigError("window and local_layers belong together: give both or neither")
    if config.window is not None:
        require("window", config.window, minimum=0)


def check_kept_heads(config: "EncoderConfig") -> None:
    """A bias a head is made once for all layers, so a layer that lost heads must say which it kept.

    Raises:
        ConfigError: naming the field, the value and what is allowed.
    """
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


def check_value_stream(config: "EncoderConfig") -> None:
    """What happens to values on their way: dropout, and shares of the first layer's.

    Raises:
        ConfigError: naming the field, the value and what is allowed.
    """
    if not _is_number(config.head_dropout) or not 0 <= config.head_dropout < 1:
        raise ConfigError(f"head_dropout is {config.head_dropout!r}: expected a share of at least 0 and below 1")
    if config.learned_value_residual and not config.value_residual:
        raise ConfigError("learned_value_residual needs value_residual: where its parameters begin")
    if not config.value_residual:
        return
    if len(config.value_residual) != config.num_layers or tuple(config.value_residual[0]) != (0, 1):
        raise ConfigError(f"value_residual: expected {config.num_layers} pairs, the first layer's (0, 1)")
    for layer, mix in enumerate(config.value_residual):
        if len(mix) != 2 or not all(map(_is_number, mix)):
            raise ConfigError(f"value_residual[{layer}] is {mix!r}: expected two numbers, a and b")
    if len(set(config.num_heads)) > 1 or len(set(config.num_key_value_heads)) > 1 or not config.num_heads[0]:
        raise ConfigError("value_residual adds the first layer's heads to every layer's: all need as many, not 0")


def check_shared_layers(config: "EncoderConfig") -> None:
    """Layers that share weights have shapes that allow it, and name the first of them.

    Raises:
        ConfigError: naming the field, the value and what is allowed.
    """
    if not config.shared_layers:
        return
    firsts = config.shared_layers
    if len(firsts) != config.num_layers or any(
        isinstance(first, bool) or not isinstance(first, int) or not 0 <= first <= layer or firsts[first] != first
        for layer, first in enumerate(firsts)
    ):
        raise ConfigError(
            f"shared_layers is {list(firsts)}: expected {config.num_layers} layers, of each the first alike"
        )
    if any(
        (config.num_heads[layer], config.groups(layer)) != (config.num_heads[first], config.groups(first))
        for layer, first in enumerate(firsts)
    ):
        raise ConfigError("shared_layers: layers of one weight need the same heads")
    if config.value_residual or not config.first_attention_norm:
        raise ConfigError(
            "shared_layers: value_residual and first_attention_norm make the first layer unlike the others"
        )


def require(name: str, value: object, *, minimum: int, maximum: int = LARGEST) -> None:
    """A whole number.

    Raises:
        ConfigError: naming the field, the value and what is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise ConfigError(
            f"{name} is {value!r:.100}: expected a whole number of at least {minimum} and at most {maximum}"
        )


def require_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """One of a few names.

    Raises:
        ConfigError: naming the field, the value and what is allowed.
    """
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}: expected one of {', '.join(allowed)}")


def require_flag(name: str, value: object) -> None:
    """True or false.

    Raises:
        ConfigError: naming the field, the value and what is allowed.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r:.100}: expected true or false")


def require_positive(name: str, value: object) -> None:
    """A finite number above 0.

    Raises:
        ConfigError: naming the field, the value and what is allowed.
    """
    if not _is_number(value) or value <= 0:
        raise ConfigError(f"{name} is {value!r:.100}: expected a positive number")


def _is_number(value: object) -> TypeGuard[float]:
    """Finite, and no whole number that a float cannot hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max
