"""What a corpus is made of: its files, their rows, and chunks of rows that are known by what they hold.

A chunk ends where the hash of a row says so, not after a number of rows. So a row that is inserted, changed or removed
changes the chunk that it is in, and no other one. A chunk's name follows from its file and its rows. It knows neither
Ray nor how a text becomes a vector.
"""

import hashlib
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import csv, json, parquet
from pyarrow.fs import FileSelector, FileSystem, FileType

EMBEDDING = "embedding"
KINDS = {".parquet": "Parquet", ".jsonl": "JSON lines", ".ndjson": "JSON lines", ".csv": "CSV", ".txt": "text"}
"""What a file is, by the ending of its name."""

CHUNK_ROWS = 8192  # on average; a power of two
MOST_ROWS = 4 * CHUNK_ROWS
READ_ROWS = 8192  # at a time
BLOCK_BYTES = 1 << 23  # of JSON lines and CSV, at a time: types follow from the first block, a row fits into two
SHARD_BYTES = 1 << 20  # of a file, at least, for an actor: some thousand texts, which take a core ten seconds
URI_LETTERS = "/!$&'()*+,;=:@~"  # that a path in a URI has as they are


class WrongCorpus(Exception):
    """The input cannot be encoded; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a corpus. Its name is its path from the place that was given, or its URI if two have that path."""

    uri: str
    name: str
    kind: str  # one of the values of `KINDS`
    size: int  # in bytes

    @property
    def prefix(self) -> str:
        """What the names of this file's chunks begin with."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns that every file has; ids are made if a file has none."""

    id: str = "id"
    text: str = "text"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one file, with an id and a text each, and other columns as the file has them."""

    name: str  # follows from the file's name and the rows
    rows: pa.Table
    share: float  # of the file, from 0 to 1


def uri_of(place: str) -> str:
    """A URI, or of a path the one that leads there: a link keeps its name, whose ending says what it holds."""
    return place.rstrip("/") if "://" in place else Path(os.path.abspath(place)).as_uri()


def find_sources(inputs: Sequence[str]) -> list[Source]:
    """Every file of the given files and folders; names that begin with a dot or an underscore are passed over.

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
    files, base = [info], PurePosixPath(path).parent
    place, mark, options = uri.partition("?")  # of an object store
    if info.type == FileType.File:
        folder = place.rpartition("/")[0]
    else:
        listed = filesystem.get_file_info(FileSelector(path, recursive=True))
        files = [one for one in listed if one.type == FileType.File]
        files = [one for one in files if not re.search("(^|/)[._]", one.path.removeprefix(path))]
        folder, base = place.removesuffix("/"), PurePosixPath(path)
    sources = [
        Source(f"{folder}/{quote(name, URI_LETTERS)}{mark}{options}", name, KINDS[kind], one.size)
        for one in sorted(files, key=lambda one: one.path)
        if (kind := PurePosixPath(one.path).suffix.lower()) in KINDS
        for name in [str(PurePosixPath(one.path).relative_to(base))]
    ]
    if not sources:
        endings = sorted({PurePosixPath(one.path).suffix or one.base_name for one in files})
        has = f"it has {', '.join(endings[:8])}" if endings else "it is empty"
        raise WrongCorpus(f"{uri} holds no file to encode: expected {', '.join(KINDS)}; {has}")
    return sources


def check_source(source: Source, columns: Columns) -> None:
    """Reads the first rows.

    Raises:
        WrongCorpus: the file cannot be read, lacks a column, or has vectors already.
    """
    next(_read(source, columns), None)


def chunks(source: Source, columns: Columns) -> Iterator[Chunk]:
    """The rows of a file in chunks, in their order. Memory is bounded by `MOST_ROWS` rows, whatever the file's size.

    Raises:
        WrongCorpus: as `check_source`.
    """
    seen: Counter[str] = Counter()
    began = 0.0
    for rows, hashes, position in _cut(source, columns):
        content = hashlib.sha256(b"".join(hashes)).hexdigest()[:24]
        seen[content] += 1  # a file may hold the same rows again
        if columns.id not in rows.schema.names:
            ids = pa.array([digest.hex() for digest in hashes], pa.string())
            rows = rows.add_column(0, columns.id, ids)  # noqa: PLW2901 - the same rows
        yield Chunk(f"{source.prefix}-{content}-{seen[content]}", rows, position - began)
        began = position


def _cut(source: Source, columns: Columns) -> Iterator[tuple[pa.Table, list[bytes], float]]:
    """Rows between two ends of chunks, the hash of each, and how much of the file is read, from 0 to 1."""
    held: list[pa.Table] = []
    hashes: list[bytes] = []
    position = 0.0
    for table, position in _read(source, columns):
        start = 0
        for row, digest in enumerate(_row_hashes(table)):
            hashes.append(digest)
            if int.from_bytes(digest[:4]) % CHUNK_ROWS == 0 or len(hashes) == MOST_ROWS:
                yield pa.concat_tables([*held, table.slice(start, row + 1 - start)]), hashes, position
                held, hashes, start = [], [], row + 1
        if start < len(table):
            held.append(table.slice(start))
    if held:
        yield pa.concat_tables(held), hashes, 1.0


def _row_hashes(table: pa.Table) -> Iterator[bytes]:
    names = repr(table.schema.names)
    values = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return (
        hashlib.blake2b((names + repr(row)).encode(errors="surrogatepass"), digest_size=16).digest() for row in values
    )


def _read(source: Source, columns: Columns) -> Iterator[tuple[pa.Table, float]]:
    """Tables of at most `READ_ROWS` rows of one schema, and how much of the file has been read, from 0 to 1."""
    filesystem, path = FileSystem.from_uri(source.uri)
    readers = {"Parquet": _parquet, "JSON lines": _json_lines, "CSV": _csv, "text": _lines}
    schema = None
    try:
        for table, position in readers[source.kind](filesystem, path, columns):
            if schema is None:
                schema = table.schema
                _check_columns(schema, columns, source)
            for start in range(0, len(table), READ_ROWS):
                yield table.slice(start, READ_ROWS).cast(schema), position
    except (pa.ArrowException, UnicodeDecodeError) as error:
        message = f"{source.uri} cannot be read as {source.kind}: {error}"
        if schema is not None and source.kind in ("JSON lines", "CSV"):
            message += "; columns and their types are those of a file's first 8 MiB"
        raise WrongCorpus(message) from error


def _check_columns(schema: pa.Schema, columns: Columns, source: Source) -> None:
    if double := [name for name in (columns.id, columns.text) if schema.names.count(name) > 1]:
        raise WrongCorpus(f"{source.uri} has several columns {double[0]}")
    if columns.text not in schema.names:
        raise WrongCorpus(f"{source.uri} has no column {columns.text}; it has {', '.join(schema.names)}")
    text = schema.field(columns.text).type
    if not (pa.types.is_string(text) or pa.types.is_large_string(text) or pa.types.is_string_view(text)):
        raise WrongCorpus(f"{source.uri}: column {columns.text} holds {text}, not texts")
    if EMBEDDING in schema.names:
        raise WrongCorpus(f"{source.uri} has a column {EMBEDDING} already")
    ids = [schema.field(columns.id)] if columns.id in schema.names else []
    if source.kind == "JSON lines" and any(pa.types.is_floating(one.type) for one in ids):
        raise WrongCorpus(f"{source.uri}: column {columns.id} holds fractions or too large numbers: write texts")


Tables = Iterator[tuple[pa.Table, float]]


def _parquet(filesystem: FileSystem, path: str, _: Columns) -> Tables:
    with filesystem.open_input_file(path) as file:
        opened, done = parquet.ParquetFile(file), 0
        if opened.metadata.num_rows == 0:
            yield opened.schema_arrow.empty_table(), 1.0
        for batch in opened.iter_batches(READ_ROWS):
            done += len(batch)
            yield pa.Table.from_batches([batch]), done / opened.metadata.num_rows


def _json_lines(filesystem: FileSystem, path: str, _: Columns) -> Tables:
    """Strings as they stand: Arrow takes those that look like dates for times."""
    read = json.ReadOptions(block_size=BLOCK_BYTES)
    with filesystem.open_input_file(path) as file:
        if file.size() == 0:  # as those who write in parts leave some
            return
        with json.open_json(file, read) as reader:
            parse = json.ParseOptions(explicit_schema=pa.schema(map(_without_times, reader.schema)))
    with filesystem.open_input_file(path) as file:
        yield from _positioned(json.open_json(file, read, parse), file)


def _without_times(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_timestamp(kind):
        return field.with_type(pa.string())
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(_without_times(kind.value_field)))
    return field.with_type(pa.struct(map(_without_times, kind))) if pa.types.is_struct(kind) else field


def _csv(filesystem: FileSystem, path: str, columns: Columns) -> Tables:
    """Texts and ids as they stand: a column of numbers is texts, too, and an empty cell is the empty text."""
    options = csv.ConvertOptions(column_types=dict.fromkeys((columns.text, columns.id), pa.string()))
    read, parse = csv.ReadOptions(block_size=BLOCK_BYTES), csv.ParseOptions(newlines_in_values=True)
    with filesystem.open_input_file(path) as file:
        yield from _positioned(csv.open_csv(file, read, parse, options), file)


def _positioned(batches: Iterable[pa.RecordBatch], file: Any) -> Tables:
    size = max(1, file.size())
    for batch in batches:
        yield pa.Table.from_batches([batch]), file.tell() / size


def _lines(filesystem: FileSystem, path: str, columns: Columns) -> Tables:
    """A text a line; an empty line is a row without text."""
    with filesystem.open_input_file(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="\n") as lines:
        size = max(1, file.size())
        while texts := [line.rstrip("\r\n") or None for line in islice(lines, READ_ROWS)]:
            yield pa.table({columns.text: pa.array(texts, pa.string())}), file.tell() / size
