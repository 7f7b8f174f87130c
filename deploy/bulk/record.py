"""What an output directory was made with, so that vectors of two models never share one."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from pyarrow.fs import FileSelector, FileSystem, FileType

from model.manifest import Manifest

NAME, SUMMARY = "_polyhead.json", "_summary.json"
"""Readers of Parquet folders pass over names that begin with an underscore."""


class AnotherRun(Exception):
    """The directory holds what other settings made; the message says which."""


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that a vector depends on, beside its text."""

    model: str
    weights_sha256: str
    precision: str
    prompt_name: str | None
    dimensions: int | None
    normalize: bool
    text_column: str
    id_column: str

    @classmethod
    def of(cls, manifest: Manifest, **choices: Any) -> "Record":
        """The record of a run with this artifact."""
        source = manifest.source
        return cls(manifest.model, source.sha256, manifest.precision, **choices)

    def claim(self, filesystem: FileSystem, folder: str) -> None:
        """Writes itself, or checks that the folder is its own.

        Raises:
            AnotherRun: it is another's, or holds Parquet files that are of no run.
        """
        path = f"{folder}/{NAME}"
        if filesystem.get_file_info(path).type == FileType.NotFound:
            found = filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
            if foreign := [file.base_name for file in found if file.extension == "parquet"]:
                raise AnotherRun(f"{folder} holds {foreign[0]}, which no such run wrote; name another --output")
            filesystem.create_dir(folder, recursive=True)
            with filesystem.open_output_stream(path) as file:
                file.write(json.dumps(asdict(self), indent=2).encode() + b"\n")
            return
        with filesystem.open_input_stream(path) as file:
            held = json.loads(file.read())
        if differ := [f"{name} {held.get(name)!r}" for name, value in asdict(self).items() if held.get(name) != value]:
            raise AnotherRun(f"{folder} was begun with {', '.join(differ)}; name another --output")


def write_summary(summary: dict[str, Any], filesystem: FileSystem, folder: str) -> None:
    """Writes a run's figures beside its output, over those of the run before."""
    with filesystem.open_output_stream(f"{folder}/{SUMMARY}") as file:
        file.write(json.dumps(summary, indent=2, ensure_ascii=False).encode())
