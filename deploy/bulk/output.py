"""The folder of the result: what it was made with, who writes to it, and its files, one for each chunk of the corpus.

A file has its chunk's name, and gets it when it is whole. So what is done is seen from the names, a run that was killed
leaves nothing half-written among the results, and a task that begins again on another node writes over its own file
with the same rows. Readers of Parquet folders pass over names that begin with an underscore. It knows no Ray.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyarrow.fs import FileSelector, FileSystem, FileType

from deploy.bulk.corpus import EMBEDDING, Source

RECORD, SUMMARY, LOCK, PARTIAL = "_polyhead.json", "_summary.json", "_lock.json", "_partial"
FAILED = b"polyhead_failed"  # in a file's metadata: how many of its rows have a text and no vector
WRITTEN_ROWS = 4096  # at a time: the encoded bytes of one part are held until they are written
BEAT_SECONDS, SILENT_SECONDS, SETTLE_SECONDS = 10.0, 60.0, 0.3


class AnotherRun(Exception):
    """The folder holds what other settings made, or another run writes to it; the message says which."""


class Output:
    """The folder, local or of an object store; it need not be there yet."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._filesystem, self._folder = FileSystem.from_uri(uri)

    def claim(self, record: Mapping[str, Any]) -> None:
        """Writes what every vector depends on besides its text, or checks that the folder was made with the same.

        Raises:
            AnotherRun: it has another one, or holds Parquet files that no such run wrote.
        """
        held = self._read_json(RECORD)
        if held is None:
            if foreign := sorted(self._names()):
                file = f"{foreign[0]}.parquet"
                raise AnotherRun(f"{self._folder} holds {file}, which no such run wrote; name another --output")
            self.write_json(RECORD, record)
            return
        if differ := [f"{name} {held.get(name)!r}" for name, value in record.items() if held.get(name) != value]:
            raise AnotherRun(f"{self._folder} was begun with {', '.join(differ)}; name another --output")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder until the block ends; a lock whose run was killed is taken over.

        Raises:
            AnotherRun: a run holds it; the message says which, and since when.
        """
        since = datetime.now(UTC).isoformat(timespec="seconds")
        ours = {"run": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid(), "since": since}
        if held := self._read_json(LOCK):
            is_gone = held["host"] == ours["host"] and not _is_running(held["pid"])
            if not is_gone and time.time() - held["seen"] < SILENT_SECONDS:
                raise AnotherRun(
                    f"{self._folder} is being written by process {held['pid']} on {held['host']}, since "
                    f"{held['since']}: wait for it, or a minute after it is gone"
                )
        self.write_json(LOCK, ours | {"seen": time.time()})
        time.sleep(SETTLE_SECONDS)  # of runs that begin at the same moment the last to write its own has it
        if (held := self._read_json(LOCK)) is None or held["run"] != ours["run"]:
            raise AnotherRun(f"{self._folder} was taken by another run at the same moment")
        if self._filesystem.get_file_info(f"{self._folder}/{PARTIAL}").type != FileType.NotFound:
            self._filesystem.delete_dir(f"{self._folder}/{PARTIAL}")
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_SECONDS):
                with suppress(OSError):  # the next one may succeed: the lock is another's only after six that failed
                    self.write_json(LOCK, ours | {"seen": time.time()})

        thread = threading.Thread(target=beat, name="lock", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            with suppress(OSError):
                self._filesystem.delete_file(f"{self._folder}/{LOCK}")

    def failures(self, name: str) -> int | None:
        """How many rows of a chunk that is done have a text and no vector; None if the chunk is not done."""
        try:
            with self._filesystem.open_input_file(self._path(name)) as file:
                metadata = parquet.ParquetFile(file).schema_arrow.metadata or {}
        except FileNotFoundError:
            return None
        return int(metadata.get(FAILED, b"0"))

    def read(self, name: str) -> pa.Table:
        """The rows of a chunk that is done."""
        return parquet.read_table(self._path(name), filesystem=self._filesystem)

    def write(self, name: str, rows: pa.Table, *, failed: int) -> None:
        """Writes a chunk's file, which gets its name when it is whole."""
        partial = f"{self._folder}/{PARTIAL}/{name}-{uuid.uuid4().hex}"
        self._filesystem.create_dir(f"{self._folder}/{PARTIAL}", recursive=True)
        parquet.write_table(
            rows.replace_schema_metadata({**(rows.schema.metadata or {}), FAILED: str(failed).encode()}),
            partial,
            filesystem=self._filesystem,
            row_group_size=WRITTEN_ROWS,
            # Vectors hardly repeat: a dictionary of them makes the file larger, and writing it slower.
            use_dictionary=[name for name in rows.schema.names if name != EMBEDDING],
        )
        self._filesystem.move(partial, self._path(name))

    def sweep(self, sources: Iterable[Source], current: Collection[str]) -> tuple[int, int]:
        """Deletes the files of chunks that their source no longer has.

        Returns:
            Rows in the deleted files, and rows of sources that are not among the given ones, whose files stay.
        """
        prefixes = {source.prefix for source in sources}
        deleted = others = 0
        for name in self._names() - set(current):
            rows = self._count(name)
            if name.partition("-")[0] in prefixes:
                self._filesystem.delete_file(self._path(name))
                deleted += rows
            else:
                others += rows
        return deleted, others

    def count_rows(self) -> int:
        """Rows of all files, from their footers."""
        return sum(map(self._count, self._names()))

    def _names(self) -> set[str]:
        found = self._filesystem.get_file_info(FileSelector(self._folder, allow_not_found=True))
        return {PurePosixPath(file.path).stem for file in found if file.extension == "parquet"}

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}.parquet"

    def _count(self, name: str) -> int:
        return int(parquet.read_metadata(self._path(name), filesystem=self._filesystem).num_rows)

    def _read_json(self, name: str) -> dict[str, Any] | None:
        try:
            with self._filesystem.open_input_stream(f"{self._folder}/{name}") as file:
                found: dict[str, Any] = json.loads(file.read())
                return found
        except FileNotFoundError:
            return None

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a file whole: a reader finds the one before or this one."""
        self._filesystem.create_dir(self._folder, recursive=True)
        partial = f"{self._folder}/_{uuid.uuid4().hex}"
        with self._filesystem.open_output_stream(partial) as file:
            # Ids in Parquet may be dates, numbers of many digits or bytes, which JSON has no form for.
            file.write(json.dumps(content, indent=2, ensure_ascii=False, default=str).encode() + b"\n")
        self._filesystem.move(partial, f"{self._folder}/{name}")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True
