"""What a person may have meant by the name of an artifact that is not there."""

import difflib
from pathlib import Path

from model.artifact import MANIFEST

_LOOKED_AT = 200  # entries of a folder


def nearby_artifacts(directory: Path) -> list[Path]:
    """Artifacts beside and below a path, those of the most similar names first; at most three."""
    folders = {folder for folder in (directory, directory.parent, Path("artifacts")) if folder.is_dir()}
    found = {
        entry.name: entry
        for folder in sorted(folders)
        for entry in sorted(folder.iterdir())[:_LOOKED_AT]
        if (entry / MANIFEST).is_file()
    }
    similar = difflib.get_close_matches(directory.name, found, n=3, cutoff=0.3)
    return [found[name] for name in (similar or sorted(found)[:3])]
