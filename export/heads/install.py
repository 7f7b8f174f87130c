"""Puts the report into an artifact in steps, each of which leaves an artifact that the service accepts.

The manifest stops listing the old report, then files are replaced one by one, then the manifest lists the new ones;
each step replaces one file whole. An interruption in between leaves an artifact without a report.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from model.artifact import MANIFEST, hash_file, read_manifest
from model.manifest import FileEntry, Manifest, manifest_bytes


def install_files(directory: Path, contents: Mapping[str, bytes]) -> Manifest:
    """Writes files into an artifact and its manifest, in place of files of the same names."""
    manifest = read_manifest(directory)
    others = {name: entry for name, entry in manifest.files.items() if name not in contents}
    if len(others) < len(manifest.files):
        write_whole(directory / MANIFEST, manifest_bytes(replace(manifest, files=others)))
    for name, content in contents.items():
        write_whole(directory / name, content)
    entries = {name: FileEntry(sha256=hash_file(directory / name), size=len(contents[name])) for name in contents}
    installed = replace(manifest, files={**others, **entries})
    write_whole(directory / MANIFEST, manifest_bytes(installed))
    return installed


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file at once: a reader sees the old content or the new, also after a loss of power."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
