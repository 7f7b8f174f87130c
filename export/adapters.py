"""Merges one of the adapters (LoRA, Hu et al. 2022) that a checkpoint holds beside its weights.

As jina-embeddings-v3 stores them: a weight W is `parametrizations.weight.original`; its adapters stand in one tensor
each of A and B, a task a row, and W becomes W + B A alpha / rank. An embedding's are the other way round, A B.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from export.errors import UnsupportedModel

ORIGINAL, FIRST, SECOND = (f".parametrizations.weight.{part}" for part in ("original", "0.lora_A", "0.lora_B"))


def merge_adapter(tensors: Mapping[str, Tensor], config: Mapping[str, Any], name: str | None) -> dict[str, Tensor]:
    """The tensors with one adapter in their weights, under the names of plain weights.

    Args:
        tensors: the checkpoint's.
        config: its config.json, whose `lora_adaptations` names the adapters in order.
        name: of the adapter; None where the checkpoint has none.

    Raises:
        UnsupportedModel: none was chosen where there are some, or one that is not there; tensors that do not fit.
    """
    names = config.get("lora_adaptations") or []
    if not names and name is not None:
        raise UnsupportedModel(f"--adapter {name}: the checkpoint has no adapters (lora_adaptations in config.json)")
    if names and name not in names:
        said = "choose one" if name is None else f"{name!r} is none of them"
        raise UnsupportedModel(f"the checkpoint has an adapter for each of {', '.join(names)}: {said} with --adapter")
    if not names:
        return dict(tensors)
    scale = config["lora_alpha"] / config["lora_rank"]
    merged = {key: tensor for key, tensor in tensors.items() if not key.endswith((FIRST, SECOND))}
    for key in [key for key in merged if key.endswith(ORIGINAL)]:
        module, weight = key.removesuffix(ORIGINAL), merged.pop(key)
        merged[f"{module}.weight"] = weight + scale * _change(tensors, module, names.index(name), weight)
    return merged


def _change(tensors: Mapping[str, Tensor], module: str, index: int, weight: Tensor) -> Tensor:
    """B A, or A B of an embedding; whichever has the weight's shape."""
    try:
        first, second = tensors[module + FIRST][index], tensors[module + SECOND][index]
        is_linear = first.shape[-1] == weight.shape[-1]
        change = torch.matmul(second, first) if is_linear else torch.matmul(first, second)
    except (KeyError, IndexError, RuntimeError) as error:
        raise UnsupportedModel(f"the adapter of {module} cannot be applied: {error}") from error
    if change.shape != weight.shape:
        raise UnsupportedModel(
            f"the adapter of {module} has shape {tuple(change.shape)}, its weight {tuple(weight.shape)}"
        )
    return change
