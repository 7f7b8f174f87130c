"""The folder that a run writes: a network that `export` reads back to the bit, its record, and a checkpoint.

A network replaces another after all of its files are on the disk: an interruption or a full disk leaves the earlier.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from export.checkpoint import Checkpoint
from export.exporter import require_writable
from export.sources import read_json
from model.artifact import COSINE, TOKENIZER, write_whole
from model.encoder import Encoder
from train.errors import RunError
from train.settings import CHECKPOINT, WEIGHTS, has_checkpoint

RECORD, CURVES = "training.json", "training.svg"
NEXT = ".next"  # folder of a network that is whole and not yet in place
STATE = "state"  # the name of the JSON in a checkpoint's metadata


def write_network(folder: Path, encoder: Encoder, like: Checkpoint) -> None:
    """Writes a network, without head dropout, with what surrounds it in another checkpoint: its tokenizer and so on."""
    config = replace(encoder.config, head_dropout=0.0)
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if config.type_vocab_size > 1 else [])]
    described: dict[str, Any] = {
        "config.json": {
            "model_type": "polyhead",
            **config.to_dict(),
            **({"removed": like.removed} if like.removed else {}),
            **({"examples": like.examples} if like.examples else {}),
        },
        "tokenizer_config.json": {"model_max_length": like.max_sequence_length, "model_input_names": inputs},
    }
    if config.task == "embedding":
        described |= _around(like, config.pooling)
    again = tuple(f"layers.{layer}." for layer, first in enumerate(config.shared_layers) if layer != first)
    weights = {name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith(again)}
    files = {name: _json(content) for name, content in described.items()}
    files[TOKENIZER] = like.tokenizer.to_str(pretty=True).encode()
    files[WEIGHTS] = save({name: tensor.detach().contiguous().cpu() for name, tensor in weights.items()})
    folder.mkdir(parents=True, exist_ok=True)
    begun = folder / f"{NEXT}.part"
    shutil.rmtree(begun, ignore_errors=True)
    try:
        for name, content in files.items():
            (begun / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(begun / name, content)
    except BaseException:
        shutil.rmtree(begun, ignore_errors=True)  # else the folder is not empty, and refused when asked again
        raise
    begun.rename(folder / NEXT)
    complete_network(folder)


def compared_by_cosines(like: Checkpoint) -> Checkpoint:
    """What surrounds a network that learned cosines alone: its vectors' lengths say nothing, and are answered as 1."""
    return replace(like, defaults=replace(like.defaults, unit_length=True, similarity=COSINE))


def complete_network(folder: Path) -> None:
    """Goes on with moving a network into place where the process ended; what it wrote in part goes."""
    for part in folder.glob(f".{CHECKPOINT}.*"):
        part.unlink()
    shutil.rmtree(folder / f"{NEXT}.part", ignore_errors=True)
    for path in sorted((folder / NEXT).rglob("*")):
        if path.is_file():
            target = folder / path.relative_to(folder / NEXT)
            target.parent.mkdir(exist_ok=True)
            path.replace(target)
    shutil.rmtree(folder / NEXT, ignore_errors=True)


def write_record(folder: Path, record: Mapping[str, Any], curves: str) -> None:
    """Writes the run's record and its curves."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / RECORD, _json(record))
    write_whole(folder / CURVES, curves.encode())


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Writes everything that the run needs to go on; a RunError says that it could not be written."""
    contents, seen = {}, set()
    for name, tensor in tensors.items():
        is_shared = tensor.data_ptr() in seen  # by layers of one weight; safetensors wants each in a place of its own
        seen.add(tensor.data_ptr())
        contents[name] = tensor.detach().contiguous().cpu().clone() if is_shared else tensor.detach().contiguous().cpu()
    try:
        write_whole(folder / CHECKPOINT, save(contents, {STATE: json.dumps(state)}))
    except OSError as error:
        raise RunError(
            f"{folder / CHECKPOINT} could not be written: {error.strerror or error}. An earlier checkpoint and the "
            "best network so far are as they were: make room, and go on with --resume"
        ) from error


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state of the last checkpoint; a RunError says that there is none, or that it is broken."""
    require_folder(folder, is_resumed=True)
    path = folder / CHECKPOINT
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return tensors, json.loads(file.metadata()[STATE])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def require_folder(folder: Path, *, is_resumed: bool) -> None:
    """Refuses to begin in a folder that holds anything or cannot be written to, and to go on without a checkpoint."""
    if is_resumed and not has_checkpoint(folder):
        if read_json(folder / RECORD, optional=True).get("is_done"):
            raise RunError(f"the run in {folder} is done: nothing is left to go on with")
        raise RunError(
            f"{folder / CHECKPOINT} is not there: nothing to go on from; begin without --resume"
            + (f", after removing {folder} or with another --output" if folder.exists() else "")
        )
    if has_checkpoint(folder) and not is_resumed:
        raise RunError(f"{folder} holds a checkpoint: go on with --resume, or name another --output")
    if not is_resumed and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists and is not empty: name another --output")
    require_writable(folder)


def _around(like: Checkpoint, pooling: str) -> dict[str, Any]:
    """What sentence-transformers keeps around an embedding's network."""
    defaults = like.defaults
    paths = {"Transformer": "", "Pooling": "1_Pooling"} | ({"Normalize": "2_Normalize"} if defaults.normalize else {})
    return {
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(paths.items())
        ],
        "1_Pooling/config.json": {"pooling_mode": {"last": "lasttoken"}.get(pooling, pooling)},
        "config_sentence_transformers.json": {
            "prompts": defaults.prompts,
            "default_prompt_name": defaults.default_prompt_name,
            "similarity_fn_name": defaults.similarity,  # a dot product says that lengths count
        },
    }


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"
