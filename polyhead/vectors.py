"""Embeddings as files: `.npy`, `.parquet`, `.jsonl`; written beside the target and renamed, so whole or not there."""

import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead import Encoded
from polyhead.texts import Row

Vectors = NDArray[np.float32]
Write = Callable[[Sequence[Row], Encoded], None]

PAIR_COLUMNS = ("text", "text_pair")  # of the two texts of a pair
_NPY_HEADER_BYTES = 128
_COLUMNS = {"embeddings": "embedding", "scores": "scores", "sparse": "sparse"}  # what a row of each is called


class OutputError(Exception):
    """A file that cannot be written; the message says why."""


def open_output(target: str | None) -> AbstractContextManager[Write]:
    """A function that writes a portion of texts and vectors [n, D]; call it any number of times.

    Args:
        target: path that ends in `.npy`, `.parquet` or `.jsonl`; None is JSON lines on standard output.

    Raises:
        OutputError: another ending, or no such folder.
    """
    if target is None:
        return _on_standard_output()
    path = Path(target)
    ending = path.suffix.lower()
    if ending not in WRITERS:
        raise OutputError(f"{target}: expected a file that ends in {', '.join(WRITERS)}")
    if not path.parent.is_dir():
        raise OutputError(f"{target}: there is no folder {path.parent}")
    return _whole(path, WRITERS[ending])


@contextmanager
def _whole(path: Path, write_to: Callable[[IO[bytes]], AbstractContextManager[Write]]) -> Iterator[Write]:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file, write_to(file) as write:
            yield write
        part.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # not made; a file system that cannot be written says so here once more
            part.unlink()


@contextmanager
def _on_standard_output() -> Iterator[Write]:
    if sys.stdout is None:  # closed before we came
        raise OutputError("standard output is closed")
    try:
        with _to_lines(sys.stdout.buffer) as write:
            yield write
    except BrokenPipeError:  # whoever reads has seen enough
        raise
    except OSError as error:
        sys.stdout = None  # or Python writes what is left once more when it ends, and fails once more
        raise OutputError(f"cannot write standard output: {error.strerror or error}") from error


@contextmanager
def _to_lines(file: IO[bytes]) -> Iterator[Write]:
    def write(rows: Sequence[Row], encoded: Encoded) -> None:
        for row, value in zip(rows, encoded.values, strict=True):
            line = {**_texts_of(row), **_named(value, encoded)}
            file.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))

    yield write
    file.flush()


def _texts_of(row: Row) -> dict[str, str]:
    return {"text": row} if isinstance(row, str) else dict(zip(PAIR_COLUMNS, row, strict=True))


def _named(value: Any, encoded: Encoded) -> dict[str, Any]:
    is_scored = encoded.kind == "scores"
    return {_COLUMNS[encoded.kind]: dict(zip(encoded.labels, value, strict=True)) if is_scored else value}


def _one_array(encoded: Encoded) -> Vectors:
    if isinstance(encoded.values, np.ndarray):
        return encoded.values
    what = "sparse vectors" if encoded.kind == "sparse" else "several vectors a text"
    raise OutputError(f"this model gives {what}, which only JSON lines hold: name a file that ends in .jsonl")


@contextmanager
def _to_npy(file: IO[bytes]) -> Iterator[Write]:
    """Rows as they come; the header, which holds their number, is written last, into the place kept for it."""
    shape = [0, 0]
    file.write(bytes(_NPY_HEADER_BYTES))

    def write(_rows: Sequence[Row], encoded: Encoded) -> None:
        vectors = _one_array(encoded)
        shape[0] += len(vectors)
        shape[1] = vectors.shape[1]
        file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())

    yield write
    file.seek(0)
    file.write(_npy_header(tuple(shape)))


def _npy_header(shape: tuple[int, ...]) -> bytes:
    """NumPy's format 1.0 (numpy.lib.format), padded to `_NPY_HEADER_BYTES`."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode("ascii")
    magic = b"\x93NUMPY\x01\x00"
    room = _NPY_HEADER_BYTES - len(magic) - 2
    return magic + struct.pack("<H", room) + text.ljust(room - 1) + b"\n"


@contextmanager
def _to_parquet(file: IO[bytes]) -> Iterator[Write]:
    try:
        import pyarrow  # noqa: PLC0415 - an extra, needed for these files only
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise OutputError("writing Parquet needs pyarrow: install the cli extra, pip install '.[cli]'") from error
    opened: list[Any] = []

    def write(rows: Sequence[Row], encoded: Encoded) -> None:
        vectors = _one_array(encoded)
        flat = pyarrow.array(vectors.ravel(), pyarrow.float32())
        column = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        named = [_texts_of(row) for row in rows]
        texts = {name: pyarrow.array([row[name] for row in named], pyarrow.string()) for name in named[0]}
        table = pyarrow.table({**texts, _COLUMNS[encoded.kind]: column})
        if not opened:
            opened.append(parquet.ParquetWriter(file, table.schema))
        opened[0].write_table(table)

    yield write
    for writer in opened:
        writer.close()


WRITERS: Mapping[str, Callable[[IO[bytes]], AbstractContextManager[Write]]] = MappingProxyType(
    {".npy": _to_npy, ".parquet": _to_parquet, ".jsonl": _to_lines}
)
