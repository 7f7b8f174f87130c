"""Reads tensors from safetensors files, single or sharded, as float32.

It knows files and names; which name means what is a family's business.
"""

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from export.errors import SourceError
from export.sources import require_safetensors
from model.artifact import hash_file

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_weights(folder: Path) -> tuple[dict[str, Tensor], str]:
    """Reads every tensor of a checkpoint folder.

    Returns:
        Tensors by name, floating ones as float32, and the SHA-256 of the weights: of the file, or of the shards'
        hashes in order.

    Raises:
        SourceError: no safetensors, a missing shard, or a corrupt file.
    """
    files = _weight_files(folder)
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise SourceError(f"{file} cannot be read: {error}") from error
    hashes = [hash_file(file) for file in files]
    digest = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
    return {name: _as_float32(tensor) for name, tensor in tensors.items()}, digest


def _weight_files(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        shards = _read_index(folder / INDEX)
        if outside := [shard for shard in shards if Path(shard).name != shard]:
            raise SourceError(f"{folder / INDEX} names {outside[0]}, which is outside the folder")
        return [folder / shard for shard in shards]
    require_safetensors([path.name for path in folder.iterdir()], str(folder))
    raise SourceError(f"{folder} has no {SINGLE}")


def _read_index(path: Path) -> list[str]:
    """The names of the shards, in order."""
    try:
        return sorted({str(name) for name in json.loads(path.read_bytes())["weight_map"].values()})
    except (OSError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise SourceError(f"{path} is malformed: {error!r:.200}") from error


def _as_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor
