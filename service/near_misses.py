"""Opens an artifact, and says what a person may have meant by the name of one that is not there."""

import difflib
from pathlib import Path

from model.artifact import MANIFEST, Artifact, ArtifactError

_LOOKED_AT = 200  # entries of a folder
_NAMED = 3


def open_artifact(directory: Path) -> Artifact:
    """As `Artifact.open`; where there is none, the error names those that may have been meant.

    Raises:
        ArtifactError: the directory is no artifact, or a file is not the one its manifest describes.
    """
    if (directory / MANIFEST).is_file() or not (near := nearby_artifacts(directory)):
        return Artifact.open(directory)
    names = " or ".join(map(str, near))
    raise ArtifactError(f"{directory} holds no {MANIFEST}; did you mean {names}? `python -m export` makes new ones")


def nearby_artifacts(directory: Path) -> list[Path]:
    """Artifacts in a folder; else those beside it, those of the most similar names first. At most three."""
    if inside := _artifacts_in(directory):
        return inside[:_NAMED]
    folders = sorted({directory.parent, Path("artifacts")})
    found = {artifact.name: artifact for folder in folders for artifact in _artifacts_in(folder)}
    similar = difflib.get_close_matches(directory.name, found, n=_NAMED, cutoff=0.3)
    return [found[name] for name in (similar or sorted(found)[:_NAMED])]


def _artifacts_in(folder: Path) -> list[Path]:
    entries = sorted(folder.iterdir())[:_LOOKED_AT] if folder.is_dir() else []
    return [entry for entry in entries if (entry / MANIFEST).is_file()]
