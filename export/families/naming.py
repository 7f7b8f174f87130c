"""Renames a checkpoint's tensors into the encoder's, completely or not at all."""

import re
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from export.errors import UnsupportedModel

QKV = ("layers.{}.attention.query", "layers.{}.attention.key", "layers.{}.attention.value")
TRANSFORMERS_LAYER: Mapping[str, str] = {  # as `transformers` names modules where a family's own code named them first
    "layers.{}.self_attn.q_proj": QKV[0],
    "layers.{}.self_attn.k_proj": QKV[1],
    "layers.{}.self_attn.v_proj": QKV[2],
    "layers.{}.self_attn.o_proj": "layers.{}.attention.output",
    "layers.{}.post_attention_layernorm": "layers.{}.attention_norm",
    "layers.{}.mlp.up_proj": "layers.{}.feed_forward.up",
    "layers.{}.mlp.gate_proj": "layers.{}.feed_forward.gate",
    "layers.{}.mlp.down_proj": "layers.{}.feed_forward.down",
    "layers.{}.post_mlp_layernorm": "layers.{}.feed_forward_norm",
}
OLD_NORM_NAMES: Mapping[str, str] = {"gamma": "weight", "beta": "bias"}  # TensorFlow's, in early conversions


def rename(
    tensors: Mapping[str, Tensor],
    names: Mapping[str, str | tuple[str, ...]],
    *,
    prefixes: Sequence[str],
    ignored: Sequence[str],
) -> dict[str, Tensor]:
    """Renames tensors by a table of module names, in which `{}` stands for the layer index.

    Args:
        tensors: the checkpoint.
        names: module name in the checkpoint -> module name in the encoder; or several, whose rows stand one below the
            other in the checkpoint's tensor, equally many of each.
        prefixes: prefixes that a checkpoint may carry in front of all names, such as `bert.`.
        ignored: beginnings of names that have no part in an encoding (heads of the pre-training tasks).

    Raises:
        UnsupportedModel: a tensor is in neither table: the network has a part that this version does not know; or its
            rows do not divide, or two tensors have one meaning.
    """
    rules = [(re.compile(re.escape(theirs).replace(r"\{\}", r"(\d+)")), ours) for theirs, ours in names.items()]
    renamed: dict[str, Tensor] = {}
    unknown: list[str] = []
    for full_name, tensor in tensors.items():
        name = _strip(full_name, prefixes)
        if name.startswith(tuple(ignored)):
            continue
        module, _, parameter = name.rpartition(".")
        if not (modules := _ours(module, rules)):
            unknown.append(full_name)
            continue
        for ours, part in zip(modules, _divide(full_name, tensor, len(modules)), strict=True):
            our_name = f"{ours}.{OLD_NORM_NAMES.get(parameter, parameter)}"
            if our_name in renamed:
                raise UnsupportedModel(f"the checkpoint holds {our_name} twice: the second is {full_name}")
            renamed[our_name] = part
    if unknown:
        raise UnsupportedModel(f"the checkpoint has {len(unknown)} tensors of an unknown part, such as {unknown[0]}")
    return renamed


def pick(tensors: Mapping[str, Tensor], names: Mapping[str, str], *, prefixes: Sequence[str]) -> dict[str, Tensor]:
    """Renames the tensors of the modules in a table, and leaves out all others."""
    modules = {name: _strip(name, prefixes).rpartition(".")[0] for name in tensors}
    chosen = {name: tensor for name, tensor in tensors.items() if modules[name] in names}
    return rename(chosen, names, prefixes=prefixes, ignored=())


def _ours(module: str, rules: Iterable[tuple[re.Pattern[str], str | tuple[str, ...]]]) -> list[str]:
    """Our names of a module; empty where no rule knows it."""
    for pattern, ours in rules:
        if match := pattern.fullmatch(module):
            return [name.format(*match.groups()) for name in ((ours,) if isinstance(ours, str) else ours)]
    return []


def _divide(name: str, tensor: Tensor, parts: int) -> list[Tensor]:
    """Equally many rows for each part, each with memory of its own."""
    if parts == 1:
        return [tensor]
    if tensor.shape[0] % parts:
        raise UnsupportedModel(f"{name} has {tensor.shape[0]} rows: expected a multiple of {parts}")
    return [part.clone() for part in tensor.chunk(parts)]


def _strip(name: str, prefixes: Sequence[str]) -> str:
    for prefix in prefixes:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def share_layers(state: Mapping[str, Tensor], firsts: Sequence[int]) -> dict[str, Tensor]:
    """A state in which layers of one weight all have it (`EncoderConfig.shared_layers`); the tensors are shared."""
    whole = dict(state)
    for layer, first in enumerate(firsts):
        for name in [name for name in state if layer != first and name.startswith(f"layers.{first}.")]:
            whole.setdefault(f"layers.{layer}.{name.removeprefix(f'layers.{first}.')}", state[name])
    return whole
