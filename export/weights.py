"""Reads tensors from files of weights, single or sharded, as float32."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from export.errors import SourceError
from export.sources import refuse_pointer, require_safetensors
from model.artifact import hash_file

SINGLE, PICKLE = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"


def read_weights(folder: Path, *, allows_pickles: bool = False) -> tuple[dict[str, Tensor], str]:
    """Reads every tensor of a checkpoint folder, from safetensors if it has any.

    Returns:
        Tensors by name, floating ones as float32, and the SHA-256 of the weights: of the file, or of the shards'
        hashes in order.

    Raises:
        SourceError: no safetensors, nor a pickle that may be read; a missing shard, or a corrupt file.
    """
    files = _weight_files(folder, allows_pickles=allows_pickles)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(read_file(file))
    hashes = [hash_file(file) for file in files]
    digest = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
    return tensors, digest


def read_file(file: Path) -> dict[str, Tensor]:
    """The tensors of one file, safetensors or a pickle, floating ones as float32.

    Raises:
        SourceError: it is missing or corrupt, or a pickle of anything else than tensors by name.
    """
    refuse_pointer(file)
    try:
        tensors = load_file(file) if file.suffix == ".safetensors" else _load_pickle(file)
    except (SafetensorError, OSError) as error:
        raise SourceError(f"{file} cannot be read: {error}") from error
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def _load_pickle(file: Path) -> dict[str, Tensor]:
    try:
        held = torch.load(file, map_location="cpu", weights_only=True)  # builds tensors, and runs no code
    except OSError:
        raise
    except Exception as error:  # whatever the bytes make of the reader
        raise SourceError(
            f"{file} is no file of weights: torch.load(weights_only=True) refuses it ({type(error).__name__})"
        ) from error
    named: dict[Any, Any] = held if isinstance(held, dict) else {None: held}
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or value.layout != torch.strided:
            raise SourceError(f"{file} holds {name}, a {type(value).__name__}: expected plain tensors by name, no more")
    return {name: tensor.detach() for name, tensor in named.items()}


def _weight_files(folder: Path, *, allows_pickles: bool) -> list[Path]:
    for single in (SINGLE, PICKLE) if allows_pickles else (SINGLE,):
        index = folder / f"{single}{INDEX}"
        if (folder / single).is_file():
            return [folder / single]
        if index.is_file():
            try:
                shards = sorted({str(name) for name in json.loads(index.read_bytes())["weight_map"].values()})
            except (OSError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
                raise SourceError(f"{index} is malformed: {error!r:.200}") from error
            if outside := [shard for shard in shards if Path(shard).name != shard]:
                raise SourceError(f"{index} names {outside[0]}, which is outside the folder")
            return [folder / shard for shard in shards]
    require_safetensors([path.name for path in folder.iterdir()], str(folder))
    raise SourceError(f"{folder} has no {SINGLE}")
