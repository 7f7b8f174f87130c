"""Merges an adapter (LoRA, Hu et al. 2022) into the weights it was trained for: W becomes W + scale * B A.

jina-embeddings-v3 keeps its adapters among the network's tensors: a weight W is `parametrizations.weight.original`; its
adapters are in one tensor each of A and B, a task a row. Adapters of embeddings are the other way round, A B. `peft`
keeps an adapter in a folder of its own; jina-embeddings-v5 has such folders in `adapters/`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from export.errors import SourceError, UnsupportedModel
from export.families.family import require_settings, strip_prefix
from export.sources import read_json
from export.weights import read_file
from model.artifact import hash_file
from model.config_parts import is_number

ADAPTER = "adapter_config.json"
ADAPTERS = "adapters"  # of jina-embeddings-v5, within the network's
STORED, PICKLED = "adapter_model.safetensors", "adapter_model.bin"
ORIGINAL, FIRST, SECOND = (f".parametrizations.weight.{part}" for part in ("original", "0.lora_A", "0.lora_B"))
TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.(?P<part>lora_(embedding_)?[AB]|base_layer)(\.weight)?")
REPRODUCED: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian"),  # others change the weights that the adapter is added to
}
UNREAD = {  # which modules have an adapter is seen from the tensors, and their ranks too
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "peft_version", "revision"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "task_type", "rank_pattern"),
    *("r", "lora_alpha", "alpha_pattern", "use_rslora", "megatron_core", "qalora_group_size", "ensure_weight_tying"),
    "fan_in_fan_out",  # of a kind of layer that no network here has; `peft` itself leaves it out for others
}


def find_adapter(network: Path, name: str) -> Path | None:
    """The folder of an adapter in `peft`'s form: a name within the network's folder, or a path; or None."""
    places = (network / ADAPTERS / name, network / name, Path(name).expanduser())
    return next((place for place in places if (place / ADAPTER).is_file()), None)


def hash_adapter(network: Path, name: str | None) -> dict[str, str]:
    """SHA-256 of the files of an adapter in `peft`'s form, by name; empty for any other."""
    folder = find_adapter(network, name) if name else None
    if folder is None:
        return {}
    return {file: hash_file(path) for file in (ADAPTER, STORED, PICKLED) if (path := folder / file).is_file()}


def require_chosen(network: Path, name: str | None) -> None:
    """Refuses a folder that holds an adapter, or several, if none was named: an UnsupportedModel says how to."""
    if name is not None:
        return
    if (network / ADAPTER).is_file():
        base = read_json(network / ADAPTER).get("base_model_name_or_path")
        raise UnsupportedModel(
            f"{network} holds {ADAPTER}, an adapter: name the model it was trained for ({base}) and --adapter {network}"
        )
    if names := sorted(place.parent.name for place in network.glob(f"{ADAPTERS}/*/{ADAPTER}")):
        raise UnsupportedModel(
            f"the checkpoint has an adapter for each of {', '.join(names)}: choose one with --adapter"
        )


def merge_adapter(
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    name: str | None,
    *,
    network: Path,
    prefixes: Sequence[str],
    allows_pickles: bool,
) -> dict[str, Tensor]:
    """A checkpoint's tensors with one adapter in their weights, under the names of plain weights.

    `lora_adaptations` of config.json names the adapters among the tensors in order; any other is looked up as
    `find_adapter` does. `prefixes` are the family's.

    Raises:
        UnsupportedModel: none of several was chosen, or one that is not there; tensors that do not fit.
    """
    names = config.get("lora_adaptations") or []
    if not names:
        if name is None:
            return dict(tensors)
        if (folder := find_adapter(network, name)) is None:
            raise UnsupportedModel(
                f"--adapter {name}: the checkpoint has no adapters (lora_adaptations in config.json), and there is no "
                f"folder of that name with {ADAPTER}"
            )
        return _merge_peft(tensors, folder, prefixes, allows_pickles=allows_pickles)
    alpha, rank = config.get("lora_alpha"), config.get("lora_rank")
    if not (isinstance(names, list) and is_number(alpha) and is_number(rank) and rank):
        found = f"lora_adaptations {names!r:.100}, lora_alpha {alpha!r:.100} and lora_rank {rank!r:.100}"
        raise UnsupportedModel(f"config.json says {found}: expected a list of names and two numbers")
    if name not in names:
        said = "choose one" if name is None else f"{name!r} is none of them"
        raise UnsupportedModel(f"the checkpoint has an adapter for each of {', '.join(names)}: {said} with --adapter")
    scale = alpha / rank
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
        return _fitting(module, torch.matmul(*((second, first) if is_linear else (first, second))), weight)
    except (KeyError, IndexError, RuntimeError) as error:
        raise UnsupportedModel(f"the adapter of {module} cannot be applied: {error}") from error


def _fitting(module: str, change: Tensor, weight: Tensor) -> Tensor:
    if change.shape != weight.shape:
        raise UnsupportedModel(f"the adapter of {module} has shape {(*change.shape,)}, its weight {(*weight.shape,)}")
    return change


def _merge_peft(
    tensors: Mapping[str, Tensor], folder: Path, prefixes: Sequence[str], *, allows_pickles: bool
) -> dict[str, Tensor]:
    config = read_json(folder / ADAPTER)
    require_settings(config, REPRODUCED)
    if others := sorted(name for name, value in config.items() if value and name not in {*REPRODUCED, *UNREAD}):
        raise UnsupportedModel(f"{folder / ADAPTER} says {', '.join(others)}: plain LoRA is merged, and nothing else")
    names = {strip_prefix(name, prefixes): name for name in tensors}
    merged = dict(tensors)
    for module, parts in _read_parts(folder, allows_pickles=allows_pickles).items():
        own = f"{strip_prefix(module, prefixes)}.weight"
        if own not in names:
            raise UnsupportedModel(f"the adapter changes {module}, which the network does not have")
        weight = parts.pop("base_layer", tensors[names[own]])
        if parts:
            try:
                first, second = (parts.pop(f"lora_{part}") for part in ("A", "B"))
                change = second @ first
            except (KeyError, RuntimeError) as error:
                raise UnsupportedModel(f"the adapter of {module} cannot be applied: {error}") from error
            change = change.T if parts.pop("transposed", None) is not None else change
            weight = weight + _scale(config, module, len(first)) * _fitting(module, change, weight)
        merged[names[own]] = weight
    return merged


def _read_parts(folder: Path, *, allows_pickles: bool) -> dict[str, dict[str, Tensor]]:
    """The tensors of each module, and `transposed` for an embedding."""
    file = folder / (PICKLED if allows_pickles and not (folder / STORED).is_file() else STORED)
    if not file.is_file():
        raise SourceError(f"{folder} holds no {STORED}")
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_file(file).items():
        match = TENSOR.fullmatch(name)
        if match is None:
            raise UnsupportedModel(f"{file} holds {name}, which is no part of plain LoRA")
        parts = found.setdefault(match["module"], {})
        parts[match["part"].replace("embedding_", "")] = tensor
        if "embedding_" in match["part"]:
            parts["transposed"] = tensor
    return found


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """Alpha / r, or alpha / sqrt(r) (rsLoRA); the first pattern that ends a module's name may give another alpha."""
    patterns = config.get("alpha_pattern") or {}
    alpha = next((patterns[key] for key in patterns if re.fullmatch(rf"(.*\.)?({key})", module)), config["lora_alpha"])
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
