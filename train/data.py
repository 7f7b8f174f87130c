"""Files of texts and of rows, read whole and checked before anything is trained; a fault names file and line."""

import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from train.errors import DataError

LONGEST_LINE = 1 << 20  # bytes; encoders read a few thousand characters, and a file may be one line of gigabytes
CONLLU_COLUMNS = 10
FEWEST = 8  # examples, below which nothing is learned
COLUMN_NAME = re.compile(  # of published tables; a line of nothing else is no example
    r"id|idx|text|text_pair|sentence[12]?|premise|hypothesis|query|question|answer|passage|document"
    r"|anchor|positive|negative(_\d)?|labels?|target|score|rating|review|sentiment|category|words|tokens|(ner_|pos_)?tags"
)
MOST_HELD_OUT = 1000
TEXTS_SHARE, ROWS_SHARE = 0.02, 0.05  # that is held out
SEED = 0  # of what is held out; the same in every run

Example = TypeVar("Example")

Lines = Iterator[tuple[int, Sequence[str]]]
"""The fields of each line with its number; what is read is hashed."""


class Texts(NamedTuple):
    """Texts to learn from, in a fixed random order, and texts to judge by, which share none with them."""

    learned: Sequence[str]
    held_out: Sequence[str]
    described: Mapping[str, Any]  # the files, for the record


class Row(NamedTuple):
    """The fields of one line, and where it stands, for messages."""

    fields: tuple[str, ...]
    place: str


class Rows(NamedTuple):
    """Rows to learn from and to judge by."""

    learned: list[Row]
    held_out: list[Row]
    described: Mapping[str, Any]  # the files, for the record
    labelled: list[Row]  # all rows of the file to learn from: a rare label's may all be held out


def read_material(paths: Sequence[Path], held_out: Path | None) -> Texts:
    """Reads texts; without a file of texts to judge by, 2 % of them are held out.

    DataError if a file cannot be used, or fewer than 8 texts are left to learn from.
    """
    texts, files = read_texts(paths)
    shuffled = _shuffled(list(dict.fromkeys(texts)))  # a text that comes twice would be on both sides
    if held_out is None:
        count = _count_held_out(TEXTS_SHARE, len(shuffled))
        learned, judged = shuffled[count:], shuffled[:count]
        described: dict[str, Any] = {"held_out": f"{count} of the texts"}
    else:
        judged, judged_files = read_texts([held_out])
        judged = list(dict.fromkeys(judged))[:MOST_HELD_OUT]
        kept_apart = set(judged)
        learned = [text for text in shuffled if text not in kept_apart]
        described = {"held_out": judged_files}
    _require_examples(len(learned), paths, "different texts, without those that are held out")
    return Texts(learned, judged, {**described, "texts": files})


def read_texts(paths: Sequence[Path]) -> tuple[list[str], list[dict[str, Any]]]:
    """Texts of files with one text a line, and what a run's record says of each file; empty lines are none.

    DataError if a file cannot be read, a line is no UTF-8 or above 1 MiB, or there are fewer than 8 texts.
    """
    texts: list[str] = []
    files = []
    for path in paths:
        digest = hashlib.sha256()
        own = [text for _, line in _lines(path, digest) if (text := line.strip())]
        files.append({"name": path.name, "sha256": digest.hexdigest(), "examples": len(own)})
        texts += own
    _require_examples(len(texts), paths, "texts")
    return texts, files


def read_rows(path: Path, columns: Sequence[str], *, optional: Sequence[str] = ()) -> tuple[list[Row], dict[str, Any]]:
    """Rows of a `.csv` or `.tsv` file without a header, of a `.jsonl` file of objects, or of a `.conllu` treebank.

    Rows have the columns, in JSON lines fields of these names, and maybe optional ones. DataError for others, and as
    `read_texts`.
    """
    digest = hashlib.sha256()
    match path.suffix.lower():
        case ".jsonl":
            lines = _json_rows(path, digest, columns, optional)
        case ".tsv":
            lines = ((number, line.split("\t")) for number, line in _lines(path, digest) if line.strip())
        case ".csv":
            lines = _comma_rows(path, digest)
        case ".conllu" if columns[-1] == "labels":
            lines = _treebank_rows(path, digest)
        case _:
            endings = ".csv, .tsv, .jsonl or, for labels of words, .conllu"
            raise DataError(f"{path}: expected a name that ends in {endings}, with {', '.join(columns)}")
    rows = [_row(fields, f"{path}, line {number}", columns, optional) for number, fields in lines]
    _require_examples(len(rows), [path], "rows")
    return rows, {"name": path.name, "sha256": digest.hexdigest(), "examples": len(rows)}


def read_parts(path: Path, held_out: Path | None, columns: Sequence[str], *, optional: Sequence[str] = ()) -> Rows:
    """Reads rows; without a file of rows to judge by, 5 % of them are held out. No first text is on both sides.

    DataError if a file cannot be used, or leaves no row to learn from.
    """
    rows, file = read_rows(path, columns, optional=optional)
    shuffled = _shuffled(rows)
    if held_out is not None:
        judged, judged_file = read_rows(held_out, columns, optional=optional)
        anchors = {row.fields[0] for row in judged}
        learned = [row for row in rows if row.fields[0] not in anchors]
        if not learned:
            raise DataError(f"{path}: every row begins with a text that is held out: give other rows with --held-out")
        described: dict[str, Any] = {"rows": file, "held_out": judged_file}
        if left_out := len(rows) - len(learned):
            described["left_out"] = f"{left_out} rows whose first text is held out"
        return Rows(learned, judged, described, learned)
    count = _count_held_out(ROWS_SHARE, len(rows))
    rows_of = Counter(row.fields[0] for row in shuffled)  # in this order
    before = accumulate(rows_of.values(), initial=0)
    anchors = {anchor for anchor, held in zip(rows_of, before, strict=False) if held < count}
    judged = [row for row in shuffled if row.fields[0] in anchors]
    learned = [row for row in shuffled if row.fields[0] not in anchors]
    if not learned:
        raise DataError(f"{path}: every row begins with the same text: give rows to judge by with --held-out")
    return Rows(learned, judged, {"rows": file, "held_out": f"{len(judged)} of the rows"}, rows)


def _shuffled(examples: Sequence[Example]) -> list[Example]:
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(SEED)).tolist()
    return [examples[place] for place in order]


def _count_held_out(share: float, examples: int) -> int:
    return min(MOST_HELD_OUT, max(2, round(share * examples)))


def _require_examples(count: int, paths: Sequence[Path], what: str) -> None:
    if count < FEWEST:
        raise DataError(f"{', '.join(map(str, paths))}: {count} {what}; at least {FEWEST} are needed")


def _lines(path: Path, digest: Any) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without their ends; what is read is hashed."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
                digest.update(line)
                yield number, _decode(line, f"{path}, line {number}")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _decode(line: bytes, place: str) -> str:
    if len(line) > LONGEST_LINE:
        raise DataError(f"{place}: longer than {LONGEST_LINE} bytes; is this a text file with one example a line?")
    text, wrong = "", line.find(b"\0")  # which is every other byte of UTF-16
    try:
        text = line.decode("utf-8-sig" if place.endswith(", line 1") else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong >= 0:
        raise DataError(f"{place}: not UTF-8 (byte {wrong + 1} of the line): save the file as UTF-8")
    return text


def _json_rows(path: Path, digest: Any, columns: Sequence[str], optional: Sequence[str]) -> Lines:
    for number, line in _lines(path, digest):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: not JSON: {error}") from error
        if not isinstance(found, dict) or not set(columns) <= set(found):
            has = ", ".join(map(str, found)) if isinstance(found, dict) else type(found).__name__
            raise DataError(f"{place}: has {has or 'nothing'}; expected an object with {', '.join(columns)}")
        named = [*columns, *(name for name in optional if name in found)]
        if wrong := [name for name in found if name not in named and name.startswith("negative") and optional]:
            raise DataError(f"{place}: has {wrong[0]}; expected {', '.join(optional)}")
        for name in named:
            if isinstance(found[name], bool) or not isinstance(found[name], str | int | float):
                raise DataError(f"{place}: {name} is {json.dumps(found[name])[:40]}, expected a text or a number")
        texts = [str(found[name]) for name in named]
        try:
            "".join(texts).encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{place}: holds half of a surrogate pair, which is no character") from error
        yield number, texts


def _comma_rows(path: Path, digest: Any) -> Lines:
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader((f"{line}\n" for _, line in _lines(path, digest)), strict=True)
    try:
        for fields in filter(None, reader):
            yield reader.line_num, fields
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not CSV: {error}") from error


def _treebank_rows(path: Path, digest: Any) -> Lines:
    """Sentences of CoNLL-U: words, and their universal parts of speech, with spaces between."""
    words: list[tuple[str, str]] = []
    start = 0
    for number, line in (*_lines(path, digest), (0, "")):
        if not line.strip():
            if words:
                yield start, [" ".join(column) for column in zip(*words, strict=True)]
            words = []
        elif not line.startswith("#"):
            parts = line.split("\t")
            if len(parts) != CONLLU_COLUMNS:
                raise DataError(f"{path}, line {number}: {len(parts)} columns, expected CoNLL-U's {CONLLU_COLUMNS}")
            start = start if words else number
            if parts[0].isdigit():  # else a span of words, or a word that is not in the text
                words.append(("".join(parts[1].split()), parts[3]))


def _row(fields: Sequence[str], place: str, columns: Sequence[str], optional: Sequence[str]) -> Row:
    names = [field.strip().lower() for field in fields]
    is_first = place.lower().endswith((".csv, line 1", ".tsv, line 1"))  # other files say by themselves what is what
    if is_first and all(map(COLUMN_NAME.fullmatch, names)) and len(set(names)) == len(names) > 1:
        raise DataError(f"{place}: names the columns ({', '.join(fields)}): take the line out")  # else learned from
    if not len(columns) <= len(fields) <= len(columns) + len(optional):
        more = f" and at most {len(optional)} more" if optional else ""
        raise DataError(f"{place}: {len(fields)} columns; expected {', '.join(columns)}{more}, without a header")
    if empty := [name for name, text in zip((*columns, *optional), fields, strict=False) if not text.strip()]:
        raise DataError(f"{place}: {empty[0]} is empty")
    return Row(tuple(fields), place)
