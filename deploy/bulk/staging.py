"""Every file as Parquet with an id a row: what Ray Data reads, and what says which rows are done.

A Parquet file that has ids is read where it is. Any other is written anew, once, into a folder beside the output: its
rows in their order, and an id of the file's name and the row where it has none. The name of the copy says which state
of the source it was made of, so that a later run finds it, and takes a changed file for a new one.
"""

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice

import pyarrow as pa
from pyarrow import csv, json, parquet
from pyarrow.fs import FileSystem, FileType

from deploy.bulk.corpus import Source, WrongCorpus, check_columns

ROWS = 8192  # at a time

Tables = Iterator[pa.Table]


def stage(sources: Sequence[Source], folder: str, *, id_column: str, text_column: str) -> list[str]:
    """URIs of Parquet files with the corpus' rows.

    Args:
        sources: the corpus.
        folder: URI for the copies; made when the first one is.
        id_column: added where a file has none.
        text_column: what is encoded; a plain text file has a text a line.

    Raises:
        WrongCorpus: a file cannot be read, or lacks a column.
    """
    staged = []
    for source in sources:
        try:
            staged.append(_stage(source, folder, id_column=id_column, text_column=text_column))
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise WrongCorpus(f"{source.uri} cannot be read as {source.kind}: {error}") from error
    return staged


def _stage(source: Source, folder: str, *, id_column: str, text_column: str) -> str:
    filesystem, path = FileSystem.from_uri(source.uri)
    if source.kind == "Parquet":
        schema = parquet.read_schema(path, filesystem=filesystem)
        if id_column in schema.names:
            check_columns(schema, id_column=id_column, text_column=text_column)
            return source.uri
    state = f"{source.uri} {source.size} {filesystem.get_file_info(path).mtime_ns} {id_column} {text_column}"
    copy = f"{folder}/{hashlib.sha256(state.encode()).hexdigest()[:16]}.parquet"
    target, target_path = FileSystem.from_uri(copy)
    if target.get_file_info(target_path).type == FileType.NotFound:
        FileSystem.from_uri(folder)[0].create_dir(FileSystem.from_uri(folder)[1], recursive=True)
        tables = _READERS[source.kind](filesystem, path, text_column)
        _write(_with_ids(tables, source.name, id_column), target, target_path, (id_column, text_column))
    return copy


def _with_ids(tables: Tables, name: str, id_column: str) -> Tables:
    row = 1
    for table in tables:
        if id_column not in table.schema.names:
            ids = pa.array([f"{name}:{number}" for number in range(row, row + len(table))])
            row += len(table)
            table = table.add_column(0, id_column, ids)  # noqa: PLW2901 - the same rows
        yield table


def _write(tables: Tables, filesystem: FileSystem, path: str, columns: tuple[str, str]) -> None:
    """Writes all, and gives it its name when it is whole."""
    first = next(tables, None)
    if first is None:
        first = pa.table({name: pa.array([], pa.string()) for name in columns})
    check_columns(first.schema, id_column=columns[0], text_column=columns[1])
    partial = path + ".partial"
    with closing(parquet.ParquetWriter(partial, first.schema, filesystem=filesystem)) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table.cast(first.schema))
    filesystem.move(partial, path)


def _parquet(filesystem: FileSystem, path: str, _: str) -> Tables:
    with filesystem.open_input_file(path) as file:
        for batch in parquet.ParquetFile(file).iter_batches(ROWS):
            yield pa.Table.from_batches([batch])


def _json_lines(filesystem: FileSystem, path: str, _: str) -> Tables:
    with filesystem.open_input_stream(path) as file:
        for batch in json.open_json(file):
            yield pa.Table.from_batches([batch])


def _csv(filesystem: FileSystem, path: str, text_column: str) -> Tables:
    """The texts as they stand: a column of numbers is texts, too, and an empty cell is the empty text."""
    options = csv.ConvertOptions(column_types={text_column: pa.string()})
    parse = csv.ParseOptions(newlines_in_values=True)
    with filesystem.open_input_stream(path) as file:
        for batch in csv.open_csv(file, parse_options=parse, convert_options=options):
            yield pa.Table.from_batches([batch])


def _lines(filesystem: FileSystem, path: str, text_column: str) -> Tables:
    """A text a line; an empty line is a row without text."""
    with filesystem.open_input_stream(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as lines:
        while texts := [line.rstrip("\n") or None for line in islice(lines, ROWS)]:
            yield pa.table({text_column: pa.array(texts, pa.string())})


_READERS: dict[str, Callable[[FileSystem, str, str], Tables]] = {
    "Parquet": _parquet,
    "JSON lines": _json_lines,
    "CSV": _csv,
    "text": _lines,
}
