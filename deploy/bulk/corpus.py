"""What a corpus is made of: which files, of what kind, and the columns that every one of them has to have.

It knows neither Ray nor how a text becomes a vector.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

EMBEDDING = "embedding"
KINDS = {
    ".parquet": "Parquet",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".csv": "CSV",
    ".txt": "text",
}
"""What a file is, by the ending of its name."""


class WrongCorpus(Exception):
    """The input cannot be encoded; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a corpus.

    Attributes:
        uri: of the file.
        name: its path from the place that was given, or its URI where another file has that one, too.
        kind: one of the values of `KINDS`.
        size: in bytes.
    """

    uri: str
    name: str
    kind: str
    size: int


def find_sources(inputs: Sequence[str]) -> list[Source]:
    """Every file of the given files and folders; hidden ones and those that begin with an underscore are passed over.

    Raises:
        WrongCorpus: a place is not there, a folder holds nothing to encode, or files of more than one kind.
    """
    found = [source for uri in inputs for source in _sources_at(uri)]
    kinds = sorted({source.kind for source in found})
    if len(kinds) > 1:
        raise WrongCorpus(f"the corpus has files of several kinds ({', '.join(kinds)}): encode one kind at a time")
    if len({source.name for source in found}) < len(found):
        return [replace(source, name=source.uri) for source in found]
    return found


def _sources_at(uri: str) -> list[Source]:
    filesystem, path = FileSystem.from_uri(uri)
    info = filesystem.get_file_info(path)
    if info.type == FileType.NotFound:
        raise WrongCorpus(f"{uri} is not there: expected a file or a folder")
    if info.type == FileType.File:
        files, scheme_and_root, parent = [info], uri.removesuffix(path), PurePosixPath(path).parent
    else:
        listed = filesystem.get_file_info(FileSelector(path, recursive=True))
        files = [one for one in listed if one.type == FileType.File and _is_shown(one.path.removeprefix(path))]
        scheme_and_root, parent = uri.removesuffix("/").removesuffix(path.removesuffix("/")), PurePosixPath(path)
    sources = [
        Source(scheme_and_root + one.path, str(PurePosixPath(one.path).relative_to(parent)), KINDS[kind], one.size)
        for one in sorted(files, key=lambda one: one.path)
        if (kind := PurePosixPath(one.path).suffix.lower()) in KINDS
    ]
    if not sources:
        endings = sorted({PurePosixPath(one.path).suffix or one.base_name for one in files})
        has = f"it has {', '.join(endings[:8])}" if endings else "it is empty"
        raise WrongCorpus(f"{uri} holds no file to encode: expected {', '.join(KINDS)}; {has}")
    return sources


def _is_shown(path: str) -> bool:
    return not any(part.startswith((".", "_")) for part in PurePosixPath(path).parts)


def check_columns(schema: Any, *, id_column: str, text_column: str) -> None:
    """Raises WrongCorpus where a column is missing, the texts are none, or vectors are there already."""
    types: dict[str, Any] = dict(zip(schema.names, schema.types, strict=True))
    _check_present(types, (id_column, text_column))
    text = types[text_column]
    if not (pa.types.is_string(text) or pa.types.is_large_string(text) or pa.types.is_string_view(text)):
        raise WrongCorpus(f"column {text_column} holds {text}, not texts")
    if EMBEDDING in types:
        raise WrongCorpus(f"the corpus has a column {EMBEDDING} already")


def _check_present(types: dict[str, Any], wanted: Iterable[str]) -> None:
    for name in wanted:
        if name not in types:
            raise WrongCorpus(f"the corpus has no column {name}; it has {', '.join(types)}")
