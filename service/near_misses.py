"""What a person may have meant by the name of an artifact that is not there."""

import difflib
from pathlib import Path

from model.artifact import MANIFEST

_LOOKED_AT = 200  # entries of a folder
_NAMED = 3


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
