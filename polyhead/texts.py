"""Texts from the command line, files and standard input, one at a time: a corpus need not fit into memory."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any

STANDARD_INPUT = "-"
PAIR_SEPARATOR = "\t"  # between the two texts of a line
DELIMITERS = {".csv": ",", ".tsv": "\t"}  # of tables whose first line names the columns

MOST_CELL_CHARACTERS = 1 << 30

Row = str | tuple[str, str]
"""A text, or a pair of texts."""


class InputError(Exception):
    """A file that holds no texts; the message names the file, the line and the expectation."""


def read_texts(source: str, field: str, pair_field: str | None = None) -> Iterator[Row]:
    """The texts of a file: `.jsonl`, `.parquet`, `.csv`, `.tsv`, else one text a line; `-` is standard input, likewise.

    Args:
        source: path of the file.
        field: name of the text in JSON lines, or of the column.
        pair_field: the same of a pair's second text; in other files the two are in a line, a tab between them. None
            for single texts.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    if source == STANDARD_INPUT:
        if sys.stdin is None:  # closed before we came
            raise InputError("standard input is closed")
        yield from _rows(_standard_input(), "standard input", is_paired=pair_field is not None)
        return
    path = Path(source)
    try:
        ending = path.suffix.lower()
        if ending == ".parquet":
            yield from _columns(path, field, pair_field)
            return
        with path.open("rb") as file:
            if ending in (".jsonl", ".ndjson"):
                yield from _fields(file, source, field, pair_field)
            elif ending in DELIMITERS:
                yield from _cells(file, source, field, pair_field, DELIMITERS[ending])
            else:
                yield from _rows(file, source, is_paired=pair_field is not None)
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror or error}") from error


def _standard_input() -> Any:
    """Its bytes by a reader of our own: a thread that waits for Python's keeps the interpreter from ending."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except (AttributeError, OSError):  # a test's, in memory
        return sys.stdin.buffer


def _lines(file: Any, name: str) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        encoding = "utf-8-sig" if number == 1 else "utf-8"  # Windows programs begin files with a mark that is no text
        try:
            yield line.decode(encoding).rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{name}, line {number}: not UTF-8 (byte {error.start + 1} of the line)") from error


def _rows(file: Any, name: str, *, is_paired: bool) -> Iterator[Row]:
    if not is_paired:
        yield from _lines(file, name)
        return
    for number, line in enumerate(_lines(file, name), 1):
        texts = line.split(PAIR_SEPARATOR)
        if len(texts) != 2:
            raise InputError(f"{name}, line {number}: expected two texts with a tab between them, got {len(texts)}")
        yield texts[0], texts[1]


def _fields(file: Any, name: str, field: str, pair_field: str | None) -> Iterator[Row]:
    for number, line in enumerate(_lines(file, name), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}, line {number}: not JSON: {error}") from error
        if isinstance(row, str) and pair_field is None:
            yield row
            continue
        place = f"{name}, line {number}"
        text = _text_of(row, field, place, "--field")
        yield text if pair_field is None else (text, _text_of(row, pair_field, place, "--pair-field"))


def _text_of(row: Any, field: str, place: str, flag: str) -> str:
    text = row.get(field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise InputError(f"{place}: {_fault(row, field)}; name another with {flag}")
    return text


def _fault(row: Any, field: str) -> str:
    if not isinstance(row, dict):
        return f"is {type(row).__name__}; expected the text as {field!r}"
    if field in row:
        return f"{field!r} holds {type(row[field]).__name__}, expected a text"
    return f"has {', '.join(sorted(row)) or 'nothing'}; expected the text as {field!r}"


def _cells(file: Any, name: str, field: str, pair_field: str | None, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(MOST_CELL_CHARACTERS)
    rows = csv.DictReader((f"{line}\n" for line in _lines(file, name)), delimiter=delimiter, strict=True)
    try:
        columns = rows.fieldnames or ()
        for wanted, flag in ((field, "--field"), (pair_field, "--pair-field")):
            if wanted is not None and wanted not in columns:
                raise InputError(f"{name} has columns {', '.join(columns)}; name the one with the texts with {flag}")
        for row in rows:
            texts = [row[wanted] for wanted in (field, pair_field) if wanted is not None]
            if None in texts:
                raise InputError(f"{name}, line {rows.line_num}: expected {len(columns)} cells")
            yield texts[0] if pair_field is None else (texts[0], texts[1])
    except csv.Error as error:
        raise InputError(f"{name}, line {rows.line_num}: no table of its ending: {error}") from error


def _columns(path: Path, field: str, pair_field: str | None) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra, needed for these files only
    except ImportError as error:
        raise InputError("reading Parquet needs pyarrow: install the cli extra, pip install '.[cli]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            if pair_field is None:
                yield from _strings(file, path, field, "--field")
            else:
                seconds = _strings(file, path, pair_field, "--pair-field")
                yield from zip(_strings(file, path, field, "--field"), seconds, strict=True)
    except ArrowException as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from error


def _strings(file: Any, path: Path, field: str, flag: str) -> Iterator[str]:
    if field not in file.schema_arrow.names:
        columns = ", ".join(file.schema_arrow.names)
        raise InputError(f"{path} has columns {columns}; name the one with the texts with {flag}")
    for batch in file.iter_batches(columns=[field]):
        for text in batch.column(0).to_pylist():
            if not isinstance(text, str):
                raise InputError(f"{path}: column {field!r} holds {type(text).__name__}, expected texts")
            yield text


def count_texts(source: str) -> int | None:
    """About how many texts a file holds, for a progress bar; None if only reading it tells."""
    path = Path(source)
    if source == STANDARD_INPUT or not path.is_file() or path.suffix.lower() == ".parquet":
        return None
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def as_they_come(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    """Portions of what is there, at least one row and at most `most`: whoever writes slowly is answered at once.

    Raises:
        InputError: reading failed; portions before it are whole.
    """
    arrived: SimpleQueue[Row | BaseException | None] = SimpleQueue()
    space = Semaphore(2 * most)  # rows ahead of the reader of these portions

    def read() -> None:
        try:
            for row in rows:
                space.acquire()
                arrived.put(row)
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)

    Thread(target=read, name="texts", daemon=True).start()  # a read that waits for input ends with the process
    found: Row | BaseException | None = None
    while True:
        portion: list[Row] = []
        while len(portion) < most and (not portion or not arrived.empty()):
            found = arrived.get()
            if found is None or isinstance(found, BaseException):
                break
            portion.append(found)
            space.release()
        if portion:
            yield portion
        if isinstance(found, BaseException):
            raise found
        if found is None:
            return
