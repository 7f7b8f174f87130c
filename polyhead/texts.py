"""Texts from the command line, files and standard input, one at a time: a corpus need not fit into memory."""

import csv
import gzip
import json
import math
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Annotated, Any, Literal, NamedTuple, Self

import typer

from polyhead.output import say

STANDARD_INPUT = "-"
TEXT, TEXT_PAIR = "text", "text_pair"  # names of a text and a pair's second one, unless others are given
PAIR_SEPARATOR = "\t"  # between the two texts of a line
DELIMITERS = {".csv": ",", ".tsv": "\t"}  # of tables whose first line names the columns
MOST_CELL_CHARACTERS = 1 << 30
ID_BITS = 63  # of the whole numbers that Parquet's signed ones hold


class Row(NamedTuple):
    """A text, or a pair of texts, and the id that its file has for it."""

    text: str | tuple[str, str]
    id: Any = None


@dataclass(frozen=True, slots=True)
class Fields:
    """What tables and JSON lines call what is read."""

    text: str
    pair: str | None  # a pair's second text; None for single texts. In lines the two have a tab between them
    id: str | None  # carried along to the output

    @property
    def are_chosen(self) -> bool:
        """Whether ids or other names than the usual are wanted, for which lines of text have no place."""
        return self.id is not None or self.text != TEXT or self.pair not in (None, TEXT_PAIR)

    @property
    def flags(self) -> dict[str, str]:
        """Each wanted name with the flag that gives another."""
        named = {self.text: "--field", self.pair: "--pair-field", self.id: "--id"}
        return {name: flag for name, flag in named.items() if name is not None}


Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="texts; - is standard input")]
SourceFlag = Annotated[
    str | None,
    typer.Option(
        "--input", metavar="FILE", help="file to read: .jsonl, .parquet, .csv, .tsv, else a text a line; also .gz"
    ),
]
FieldFlag = Annotated[str, typer.Option(help="the text's name in .jsonl, its column in tables")]
IdFlag = Annotated[str | None, typer.Option("--id", metavar="FIELD", help="name of ids, which are carried along")]
FormatFlag = Annotated[
    Literal["lines", "jsonl", "csv", "tsv"] | None,
    typer.Option("--format", help="of the file, instead of its ending's, or of standard input"),
]


class InputError(Exception):
    """A file that holds no texts; the message names the file, the line and the expectation."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where texts come from: the command line, else a file, else standard input."""

    texts: Sequence[str]  # of the command line; two by two where pairs are read
    path: str  # of a file, or `-`; all but `.parquet` may be compressed, `.gz` behind the ending
    fields: Fields
    kind: str | None = None  # of the file, instead of its ending's; of standard input, which has none, lines

    @classmethod
    def given(
        cls, context: typer.Context, given: list[str] | None, path: str | None, kind: str | None, fields: Fields
    ) -> Self:
        """The texts that a command line names."""
        texts = given or []
        if texts == [STANDARD_INPUT]:
            texts, path = [], STANDARD_INPUT
        if texts and (path or STANDARD_INPUT in texts):
            context.fail("give texts, or --input FILE, or - for standard input: not both")
        if texts and (kind or fields.are_chosen):
            context.fail("--field, --id and --format are for files: texts of the command line have none of these")
        if fields.pair is not None and len(texts) % 2:
            context.fail(f"--pairs: {len(texts)} texts are no pairs: give two for each")
        if not (texts or path) and (sys.stdin is None or sys.stdin.isatty()):  # None: it was closed
            context.fail("no texts: give them as arguments, with --input FILE, or pipe them in")
        if file := next(filter(os.path.isfile, texts), None):
            say(f"{context.command_path}: {file} is taken for a text; --input {file} reads the file")
        return cls(texts, path or STANDARD_INPUT, fields, kind)

    def is_file(self, path: Path) -> bool:
        """Whether texts are read from a file that exists, by whatever name."""
        return not self.texts and Path(self.path).exists() and path.samefile(self.path)

    def rows(self) -> Iterator[Row]:
        """Every text, or pair of texts, that a tokenizer can read, with an id that can be written.

        Raises:
            InputError: bytes of another encoding (in arguments), halves of a character (in JSON), a file that cannot be
                read or holds something else.
        """
        for number, row in enumerate(self._of_arguments() if self.texts else self._of_file(), 1):
            text = row.text if isinstance(row.text, str) else "\n".join(row.text)
            for name, said in (("text", text), ("id", str(row.id))):
                try:
                    said.encode()
                except UnicodeEncodeError as error:
                    place = f"character {error.start + 1} of the {name}"
                    raise InputError(f"{name} {number}: not UTF-8 ({place})") from error
            yield row

    def _of_arguments(self) -> Iterator[Row]:
        if self.fields.pair is None:
            return map(Row, self.texts)
        return map(Row, zip(self.texts[::2], self.texts[1::2], strict=True))

    def _of_file(self) -> Iterator[Row]:
        """`.jsonl`, `.parquet`, `.csv`, `.tsv`, else one text a line; `-` is standard input."""
        path, fields, is_standard_input = Path(self.path), self.fields, self.path == STANDARD_INPUT
        name = "standard input" if is_standard_input else self.path
        if is_standard_input and sys.stdin is None:  # closed before we came
            raise InputError("standard input is closed")
        ending = f".{self.kind}" if self.kind else _ending(path)
        try:
            if ending == ".parquet":
                yield from _columns(path, fields)
                return
            with _standard_input() if is_standard_input else _opened(path) as file:
                if ending in (".jsonl", ".ndjson"):
                    yield from _fields(file, name, fields)
                elif ending in DELIMITERS:
                    yield from _cells(file, name, fields, DELIMITERS[ending])
                elif ending == ".json":
                    raise InputError(f"{name} is one document: write an object a line as .jsonl, or name its --format")
                elif fields.are_chosen:
                    raise InputError(
                        f"{name} is read as lines of text, which have no ids and no fields: name its --format"
                    )
                else:
                    yield from _rows(file, name, is_paired=fields.pair is not None)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error


def _ending(path: Path) -> str:
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def _opened(path: Path) -> Any:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


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
        yield from map(Row, _lines(file, name))
        return
    for number, line in enumerate(_lines(file, name), 1):
        texts = line.split(PAIR_SEPARATOR)
        if len(texts) != 2:
            raise InputError(f"{name}, line {number}: expected two texts with a tab between them, got {len(texts)}")
        yield Row((texts[0], texts[1]))


def _fields(file: Any, name: str, fields: Fields) -> Iterator[Row]:
    for number, line in enumerate(_lines(file, name), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}, line {number}: not JSON: {error}") from error
        if isinstance(record, str) and fields.pair is None and fields.id is None:
            yield Row(record)
        else:
            yield _row(record, fields, f"{name}, line {number}")


def _row(record: Any, fields: Fields, place: str) -> Row:
    text = _text_of(record, fields.text, place, "--field")
    if fields.id is not None and fields.id not in record:
        raise InputError(f"{place}: has {', '.join(sorted(record))}; expected the id as {fields.id!r}")
    found = None if fields.id is None else _id_of(record, fields.id, place)
    return Row(text if fields.pair is None else (text, _text_of(record, fields.pair, place, "--pair-field")), found)


def _id_of(record: Any, field: str, place: str) -> str | int | float:
    """An id that JSON and Parquet hold; dates and the like as text."""
    found = record[field]
    if found is None or isinstance(found, bool | bytes | list | dict):
        raise InputError(f"{place}: {field!r} holds {type(found).__name__}, expected an id")
    if isinstance(found, float) and not math.isfinite(found):
        raise InputError(f"{place}: {field!r} holds {found}, expected an id")
    if isinstance(found, int) and found.bit_length() > ID_BITS:
        raise InputError(f"{place}: {field!r} holds {found}, expected an id of at most {ID_BITS} bits, or a text")
    return found if isinstance(found, str | int | float) else str(found)


def _text_of(record: Any, field: str, place: str, flag: str) -> str:
    text = record.get(field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise InputError(f"{place}: {_fault(record, field)}; name another with {flag}")
    return text


def _fault(record: Any, field: str) -> str:
    if not isinstance(record, dict):
        return f"is {type(record).__name__}; expected the text as {field!r}"
    if field in record:
        return f"{field!r} holds {type(record[field]).__name__}, expected a text"
    return f"has {', '.join(sorted(record)) or 'nothing'}; expected the text as {field!r}"


def _require_columns(name: str, columns: Sequence[str], fields: Fields) -> None:
    for wanted, flag in fields.flags.items():
        if wanted not in columns:
            what = "ids" if flag == "--id" else "texts"
            raise InputError(
                f"{name} has columns {', '.join(columns) or '(none)'}; name the one with the {what} with {flag}"
            )
        if (count := columns.count(wanted)) > 1:
            raise InputError(f"{name} has {count} columns {wanted}; rename them, or name another with {flag}")


def _cells(file: Any, name: str, fields: Fields, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(MOST_CELL_CHARACTERS)
    reader = csv.reader((f"{line}\n" for line in _lines(file, name)), delimiter=delimiter, strict=True)
    began = 1  # line of the record that is read: a quote that is never closed takes the rest of the file
    try:
        columns = next(reader, [])
        _require_columns(name, columns, fields)
        began = reader.line_num + 1
        for cells in reader:
            place = f"{name}, line {reader.line_num}"
            if cells and len(cells) != len(columns):
                wanted = f"expected {len(columns)} cells; put a cell with the separator in it into quotes"
                raise InputError(f"{place}: {wanted}")
            if cells:
                yield _row(dict(zip(columns, cells, strict=True)), fields, place)
            began = reader.line_num + 1
    except csv.Error as error:
        fault = str(error).replace("\t", "\\t")
        raise InputError(
            f"{name}, line {began}: a cell that holds quotes is in quotes, each of its own written twice ({fault})"
        ) from error


def _columns(path: Path, fields: Fields) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra, needed for these files only
    except ImportError as error:
        raise InputError("reading Parquet needs pyarrow: install the cli extra, pip install '.[cli]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            _require_columns(str(path), file.schema_arrow.names, fields)
            number = 0
            for batch in file.iter_batches(columns=list(fields.flags)):
                for record in batch.to_pylist():
                    number += 1
                    yield _row(record, fields, f"{path}, row {number}")
    except (ArrowException, ValueError) as error:  # the second of values that Python has no type for
        raise InputError(f"{path} cannot be read as Parquet: {error}") from error


def count_texts(source: str) -> int | None:
    """About how many texts a file holds, for a progress bar; None if only reading it tells."""
    path = Path(source)
    if source == STANDARD_INPUT or not path.is_file() or path.suffix.lower() == ".gz":
        return None
    if path.suffix.lower() == ".parquet":
        try:
            from pyarrow import parquet  # noqa: PLC0415 - an extra, needed for these files only

            return int(parquet.read_metadata(path).num_rows)
        except (ImportError, ValueError):  # reading it says what is wrong
            return None
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def as_they_come(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    """Portions of what is there, at least one row and at most `most`: whoever writes slowly is answered at once.

    Raises:
        InputError: reading failed; portions before it are whole.
    """
    arrived: Queue[Row | BaseException | None] = Queue(2 * most)

    def read() -> None:
        try:
            for row in rows:
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
        if portion:
            yield portion
        if isinstance(found, BaseException):
            raise found
        if found is None:
            return
