"""The artifact: a directory that `export` writes and `service` reads, described by `manifest.json`.

Standard library only. It knows names, hashes and figures; it opens neither the graph nor the tokenizer.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from model.manifest import ArtifactError, FileEntry, Manifest, manifest_bytes

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 4 << 20  # a thousand times what one takes
GRAPH = "model.onnx"
GRAPH_WEIGHTS = "model.onnx.data"
EXPLAIN_GRAPH = "explain.onnx"
TOKENIZER = "tokenizer.json"
HEADS = "heads.json"
HEADS_PAGE = "heads.html"
PRUNING = "pruning.json"
PRUNING_PICTURE = "pruning.svg"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A verified directory: every file that the manifest lists is there with its size and hash."""

    directory: Path
    manifest: Manifest

    @classmethod
    def open(cls, directory: Path) -> "Artifact":
        """Reads the manifest and checks every file against it, before anything is loaded.

        Raises:
            ArtifactError: no manifest, a malformed one, or a file that is missing, outside the directory or different.
        """
        manifest = read_manifest(directory)
        for required in (GRAPH, TOKENIZER):
            if required not in manifest.files:
                raise ArtifactError(f"{directory / MANIFEST} lists no {required}; export it again")
        for name, entry in manifest.files.items():
            _check_file(directory, name, entry)
        return cls(directory, manifest)

    def path(self, name: str) -> Path:
        """Path of one of the artifact's files."""
        return self.directory / name


def read_manifest(directory: Path) -> Manifest:
    """Reads `manifest.json` without checking the other files.

    Raises:
        ArtifactError: the directory or the manifest is missing or malformed.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise ArtifactError(f"{directory} holds no {MANIFEST}: make an artifact with `python -m export --output DIR`")
    _check_place(directory, path)
    if (size := path.stat().st_size) > MAX_MANIFEST_BYTES:
        raise ArtifactError(f"{path} has {size} bytes, at most {MAX_MANIFEST_BYTES} are read")
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ArtifactError(f"{path} holds {type(data).__name__}, expected an object")
    return Manifest.from_dict(data)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes `manifest.json`, keys in field order, readable by people."""
    (directory / MANIFEST).write_bytes(manifest_bytes(manifest))


def describe_files(directory: Path) -> dict[str, FileEntry]:
    """Size and hash of every file of a directory except the manifest, by name."""
    paths = sorted(path for path in directory.iterdir() if path.name != MANIFEST)
    return {path.name: FileEntry(sha256=hash_file(path), size=path.stat().st_size) for path in paths}


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_file(directory: Path, name: str, entry: FileEntry) -> None:
    path = directory / name
    if Path(name).name != name or name in ("", ".", ".."):
        raise ArtifactError(f"manifest names {name!r}: only plain file names inside the directory are allowed")
    if not path.is_file():
        raise ArtifactError(f"{path} is missing; export it again")
    _check_place(directory, path)
    if (size := path.stat().st_size) != entry.size:
        raise ArtifactError(f"{path} has {size} bytes, the manifest says {entry.size}; export it again")
    if (digest := hash_file(path)) != entry.sha256:
        raise ArtifactError(f"{path} has SHA-256 {digest}, the manifest says {entry.sha256}; export it again")


def _check_place(directory: Path, path: Path) -> None:
    """Refuses a link that leads out of the directory. Links within it are allowed: Kubernetes mounts files so."""
    if not path.resolve().is_relative_to(directory.resolve()):
        raise ArtifactError(f"{path} is a link out of its directory: put the file itself there")
