"""Files of every kind become Parquet with an id a row, or a sentence says what they lack. No Ray."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.bulk.corpus import WrongCorpus, find_sources
from deploy.bulk.staging import stage


def rows(place: Path, folder: Path, *, id_column: str = "id", text_column: str = "text") -> list[dict[str, Any]]:
    sources = find_sources([place.as_uri()])
    staged = stage(sources, folder.as_uri(), id_column=id_column, text_column=text_column)
    return [row for uri in staged for row in pq.read_table(uri.removeprefix("file://")).to_pylist()]


def test_a_text_file_has_a_text_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\n\nvier: \u00fc".encode())
    assert rows(tmp_path / "a.txt", tmp_path / "staged") == [
        {"id": "a.txt:1", "text": "one"},
        {"id": "a.txt:2", "text": "two"},
        {"id": "a.txt:3", "text": None},
        {"id": "a.txt:4", "text": "vier: \u00fc"},
    ]


def test_a_folder_of_text_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / "corpus" / name).mkdir(parents=True)
        (tmp_path / "corpus" / name / "texts.txt").write_text(f"in {name}\n")
    (tmp_path / "corpus" / "_notes.txt").write_text("passed over")
    found = rows(tmp_path / "corpus", tmp_path / "staged")
    assert found == [{"id": "a/texts.txt:1", "text": "in a"}, {"id": "b/texts.txt:1", "text": "in b"}]
    two = find_sources([(tmp_path / "corpus" / name).as_uri() for name in "ab"])
    assert [source.name for source in two] == [(tmp_path / f"corpus/{name}/texts.txt").as_uri() for name in "ab"]


def test_json_lines_keep_their_columns_and_ids(tmp_path: Path) -> None:
    lines = [{"id": 7, "text": "one", "more": [1]}, {"id": 8, "text": None, "more": []}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert rows(tmp_path / "a.jsonl", tmp_path / "staged") == lines


def test_json_lines_without_ids_get_some(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text('{"body": "one"}\n{"body": "two"}\n')
    found = rows(tmp_path / "a.ndjson", tmp_path / "staged", text_column="body")
    assert found == [{"id": "a.ndjson:1", "body": "one"}, {"id": "a.ndjson:2", "body": "two"}]


def test_csv_takes_lines_in_quotes_and_numbers_as_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,n\n"one\nmore",1\n007,2\n')
    assert rows(tmp_path / "a.csv", tmp_path / "staged") == [
        {"id": "a.csv:1", "text": "one\nmore", "n": 1},
        {"id": "a.csv:2", "text": "007", "n": 2},
    ]


def test_parquet_with_ids_is_read_where_it_is(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "text": ["one"]}), tmp_path / "a.parquet")
    assert rows(tmp_path / "a.parquet", tmp_path / "staged") == [{"id": 1, "text": "one"}]
    assert not (tmp_path / "staged").exists()


def test_parquet_without_ids_gets_some(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "a.parquet", row_group_size=1)
    found = rows(tmp_path / "a.parquet", tmp_path / "staged")
    assert [row["id"] for row in found] == ["a.parquet:1", "a.parquet:2"]


def test_ids_go_on_where_a_batch_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(map(str, range(20_000))))
    found = rows(tmp_path / "a.txt", tmp_path / "staged")
    assert [row["id"] for row in found] == [f"a.txt:{number}" for number in range(1, 20_001)]


def test_a_copy_is_made_once_and_anew_where_the_file_changed(tmp_path: Path) -> None:
    source, folder = tmp_path / "a.txt", tmp_path / "staged"
    source.write_text("one")
    rows(source, folder)
    (first,) = folder.iterdir()
    written = first.stat().st_mtime_ns
    assert rows(source, folder) == [{"id": "a.txt:1", "text": "one"}]
    assert [path.stat().st_mtime_ns for path in folder.iterdir()] == [written]
    source.write_text("other")
    assert rows(source, folder) == [{"id": "a.txt:1", "text": "other"}]
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"id": 1}\n', "the corpus has no column text; it has id"),
        ("a.jsonl", '{"id": 1, "text": 2}\n', "column text holds int64, not texts"),
        ("a.jsonl", "{", "cannot be read as JSON lines"),
        ("a.csv", "id,body\n1,x\n", "the corpus has no column text; it has id, body"),
        ("a.csv", "", "cannot be read as CSV"),
        ("a.parquet", "PAR", "cannot be read as Parquet"),
        ("a.txt", "caf\udce9\n", "cannot be read as text"),
    ],
)
def test_a_file_that_lacks_something_is_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(WrongCorpus, match=message):
        rows(tmp_path / name, tmp_path / "staged")


def test_vectors_that_are_there_already_are_not_written_over(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "text": ["one"], "embedding": [[1.0]]}), tmp_path / "a.parquet")
    with pytest.raises(WrongCorpus, match="has a column embedding already"):
        rows(tmp_path / "a.parquet", tmp_path / "staged")


def test_a_folder_says_what_it_holds_instead(tmp_path: Path) -> None:
    with pytest.raises(WrongCorpus, match=r"no file to encode: expected \.parquet, .*; it is empty"):
        find_sources([tmp_path.as_uri()])
    (tmp_path / "notes.pdf").touch()
    (tmp_path / "README").touch()
    with pytest.raises(WrongCorpus, match=r"it has \.pdf, README"):
        find_sources([tmp_path.as_uri()])
    with pytest.raises(WrongCorpus, match="nowhere is not there: expected a file or a folder"):
        find_sources([(tmp_path / "nowhere").as_uri()])


def test_one_kind_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.csv").touch()
    with pytest.raises(WrongCorpus, match=r"several kinds \(CSV, text\): encode one kind at a time"):
        find_sources([tmp_path.as_uri()])
