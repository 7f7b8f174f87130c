"""What of a corpus is done, read from the output: whole files count, half-written ones go. No Ray."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from deploy.bulk.done import LeaveOutDone, find_done
from deploy.bulk.record import AnotherRun, Record

IDS: dict[str, list[Any]] = {"numbers": [7, -1, 3, 2**60, 0, 12], "names": ["b.txt:10", "b.txt:9", "", "ü", "a", "c"]}


def write(path: Path, ids: list[Any]) -> str:
    pq.write_table(pa.table({"id": ids, "embedding": [[1.0]] * len(ids)}), path)
    return str(path)


def left(table: pa.Table, output: Path, files: list[str]) -> list[Any]:
    return [row["id"] for part in LeaveOutDone(output.as_uri(), files, "id")(table) for row in part.to_pylist()]


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_rows_of_the_output_are_left_out(ids: list[Any], tmp_path: Path) -> None:
    table = pa.table({"id": pa.chunked_array([ids[:2], ids[2:]]), "text": list("abcdef")})
    for count in range(1, len(ids) + 1):
        done = [*reversed(ids[:count])]
        files = [write(tmp_path / "a.parquet", done[:1]), write(tmp_path / "b.parquet", done[1:])]
        assert left(table, tmp_path, files) == ids[count:]


def test_an_output_without_rows_leaves_all(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    assert left(pa.table({"id": [1, 2]}), tmp_path, [str(tmp_path / "a.parquet")]) == [1, 2]


def test_what_is_written_later_changes_nothing(tmp_path: Path) -> None:
    """A filter that begins anew on another node gives the same rows once more."""
    write(tmp_path / "a.parquet", [1])
    files = find_done(tmp_path.as_uri())
    write(tmp_path / "b.parquet", [2])
    assert left(pa.table({"id": [1, 2, 3]}), tmp_path, files) == [2, 3]


def test_half_written_files_are_deleted_and_whole_ones_found(tmp_path: Path) -> None:
    assert find_done(tmp_path.as_uri()) == []
    whole = write(tmp_path / "b.parquet", ["a", "b"])
    (tmp_path / "c.parquet").write_bytes(Path(whole).read_bytes()[:-5])
    (tmp_path / "a.parquet").touch()
    (tmp_path / "_summary.json").write_text("{}")
    assert find_done(tmp_path.as_uri()) == [whole]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_summary.json", "b.parquet"]


def test_a_folder_with_files_of_others_is_not_taken(tmp_path: Path) -> None:
    choices: dict[str, Any] = {"prompt_name": None, "dimensions": None, "normalize": True}
    record = Record("m", "0", "fp32", **choices, text_column="text", id_column="id")
    (tmp_path / "theirs.parquet").touch()
    with pytest.raises(AnotherRun, match=r"holds theirs\.parquet, which no such run wrote; name another --output"):
        record.claim(LocalFileSystem(), str(tmp_path))
    record.claim(LocalFileSystem(), str(tmp_path / "new"))
    write(tmp_path / "new/ours.parquet", [1])
    record.claim(LocalFileSystem(), str(tmp_path / "new"))
