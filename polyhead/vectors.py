"""Embeddings as files: `.npy`, `.parquet`, `.jsonl`; written next to the target and renamed, so whole or not there."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead.output import OutputError, write
from polyhead.texts import TEXT, TEXT_PAIR, Row

if TYPE_CHECKING:
    from polyhead import Encoded

Vectors = NDArray[np.float32]
Write = Callable[[Sequence[Row], "Encoded"], None]


def open_output(target: str | None) -> AbstractContextManager[Write]:
    """A function that writes a portion of texts and vectors [n, D] to a file; call it any number of times.

    None is JSON lines on standard output. `OutputError`: another ending, a folder, or none to write into.
    """
    if target is None:
        return _on_standard_output()
    path = Path(target)
    ending = path.suffix.lower()
    if ending not in WRITERS:
        raise OutputError(f"{target}: expected a file that ends in {', '.join(WRITERS)}")
    if path.is_dir():
        raise OutputError(f"{target} is a folder")
    if not path.parent.is_dir():
        raise OutputError(f"{target}: there is no folder {path.parent}")
    return _whole(path, WRITERS[ending])


@contextmanager
def _whole(path: Path, write_to: Callable[[IO[bytes]], AbstractContextManager[Write]]) -> Iterator[Write]:
    target = path.resolve()  # what a link points to
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file, write_to(file) as write:
            yield write
        part.replace(target)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # not made; a file system that cannot be written says so here once more
            part.unlink()


@contextmanager
def _on_standard_output() -> Iterator[Write]:
    if sys.stdout is None:  # said before anything is loaded
        raise OutputError("standard output is closed")
    yield lambda rows, encoded: write(b"".join(_lines(rows, encoded)))


@contextmanager
def _to_lines(file: IO[bytes]) -> Iterator[Write]:
    yield lambda rows, encoded: file.writelines(_lines(rows, encoded))


def _lines(rows: Sequence[Row], encoded: "Encoded") -> Iterator[bytes]:
    column, has_labels = _column(encoded), encoded.kind == "scores"
    for row, item, value in zip(rows, encoded.items, encoded.values, strict=True):
        named = {} if row.id is None else {"id": row.id}
        found = dict(zip(encoded.labels, value, strict=True)) if has_labels else value
        line = {**named, **_texts_of(row), "truncated": item["truncated"], column: found}
        yield orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def _texts_of(row: Row) -> dict[str, str]:
    return {TEXT: row.text} if isinstance(row.text, str) else {TEXT: row.text[0], TEXT_PAIR: row.text[1]}


def _column(encoded: "Encoded") -> str:
    return "embedding" if encoded.kind == "embeddings" else encoded.kind


def _one_array(encoded: "Encoded") -> Vectors:
    if isinstance(encoded.values, np.ndarray):
        return encoded.values
    what = {"sparse": "sparse vectors", "entities": "entities"}.get(encoded.kind, "several vectors a text")
    raise OutputError(f"this model gives {what}, which only JSON lines hold: name a file that ends in .jsonl")


@contextmanager
def _to_npy(file: IO[bytes]) -> Iterator[Write]:
    """Rows as they come; the header, which has space for any number of them, is written once more at the end."""
    shape = [0, 0]

    def write_header() -> None:
        described = {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(file, described)

    def write_rows(_rows: Sequence[Row], encoded: "Encoded") -> None:
        vectors = _one_array(encoded)
        if not shape[1]:
            shape[1] = vectors.shape[1]
            write_header()
        shape[0] += len(vectors)
        file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())

    yield write_rows
    file.seek(0)
    write_header()


def _ids(rows: Sequence[Row], schema: Any) -> Any:
    """Whole numbers or texts, whichever the first portion has."""
    import pyarrow  # noqa: PLC0415 - an extra

    is_whole = all(isinstance(row.id, int) for row in rows)
    kind = schema.field("id").type if schema is not None else pyarrow.int64() if is_whole else pyarrow.string()
    if kind == pyarrow.int64() and not is_whole:
        raise OutputError("ids are whole numbers first and texts later: name a file that ends in .jsonl")
    return pyarrow.array([row.id if kind == pyarrow.int64() else str(row.id) for row in rows], kind)


@contextmanager
def _to_parquet(file: IO[bytes]) -> Iterator[Write]:
    try:
        import pyarrow  # noqa: PLC0415 - an extra, needed for these files only
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise OutputError("writing Parquet needs pyarrow: install the cli extra, pip install '.[cli]'") from error
    opened: list[Any] = []
    closing = ExitStack()

    def write_rows(rows: Sequence[Row], encoded: "Encoded") -> None:
        vectors = _one_array(encoded)
        flat = pyarrow.array(vectors.ravel(), pyarrow.float32())
        column = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        named = [_texts_of(row) for row in rows]
        truncated = pyarrow.array([item["truncated"] for item in encoded.items], pyarrow.bool_())
        texts = {name: pyarrow.array([row[name] for row in named], pyarrow.string()) for name in named[0]}
        ids = {} if rows[0].id is None else {"id": _ids(rows, opened[0].schema if opened else None)}
        table = pyarrow.table({**ids, **texts, "truncated": truncated, _column(encoded): column})
        if not opened:
            opened.append(closing.enter_context(parquet.ParquetWriter(file, table.schema)))
        opened[0].write_table(table)

    with closing:
        yield write_rows


WRITERS: Mapping[str, Callable[[IO[bytes]], AbstractContextManager[Write]]] = {
    ".npy": _to_npy,
    ".parquet": _to_parquet,
    ".jsonl": _to_lines,
}
