"""Files of every kind become chunks of rows with an id, or a sentence says what they lack. No Ray."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.bulk import corpus
from deploy.bulk.corpus import Chunk, Columns, WrongCorpus, check_source, chunks, find_sources, uri_of

LONG = "a long text " * 300_000


def cut(place: Path, **columns: str) -> list[Chunk]:
    return [chunk for source in find_sources([uri_of(str(place))]) for chunk in chunks(source, Columns(**columns))]


def rows(place: Path, **columns: str) -> list[dict[str, Any]]:
    return [row for chunk in cut(place, **columns) for row in chunk.rows.to_pylist()]


def without_ids(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "id"} for row in found]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "\ufeffone\r\ntwo\n\nvier: ü", [{"text": text} for text in ("one", "two", None, "vier: ü")]),
        ("ü b%20#?=.ndjson", '{"text": "one"}\n{"text": "two"}\n', [{"text": "one"}, {"text": "two"}]),
        ("a.jsonl", '\ufeff{"text": "2020-01-31", "at": "2020-01-31"}\r\n', [
            {"text": "2020-01-31", "at": "2020-01-31"},
        ]),
        ("a.jsonl", f'{{"text": "{LONG}"}}\n{{"text": "two"}}\n', [{"text": LONG}, {"text": "two"}]),
        ("a.csv", 'text,n\n"one\nmore",1\n007,2\n,3\n', [
            {"text": "one\nmore", "n": 1}, {"text": "007", "n": 2}, {"text": "", "n": 3},
        ]),
    ],
)  # fmt: skip
def test_every_kind_is_read_and_gets_ids(name: str, content: str, expected: list[Any], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode())
    found = rows(tmp_path / name)
    assert without_ids(found) == expected
    assert len({row["id"] for row in found}) == len(expected)
    pq.write_table(pa.Table.from_pylist(expected), tmp_path / "b.parquet", row_group_size=1)
    assert rows(tmp_path / "b.parquet") == found  # an id is the row's own, whatever file it is in


def test_ids_and_other_columns_stay(tmp_path: Path) -> None:
    lines = [{"id": 7, "body": "one", "more": [1]}, {"id": 8, "body": None, "more": []}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert rows(tmp_path / "a.jsonl", text="body") == lines
    (tmp_path / "a.csv").write_text("key,text\n007,one\n")  # a number would be another id
    assert rows(tmp_path / "a.csv", id="key") == [{"key": "007", "text": "one"}]


def test_names_of_a_folders_files(tmp_path: Path) -> None:
    corpus = tmp_path / "ein Körper"
    for name in ("b", "a ü=1", "b/.git", "_old"):
        (corpus / name).mkdir(parents=True)
        (corpus / name / "texts.txt").write_text(f"in {name}\n")
    (corpus / "_notes").write_text("passed over")
    (tmp_path / "a.txt").symlink_to(corpus / "_notes")  # as in the hub's cache: the link's name says what it holds
    assert without_ids(rows(tmp_path / "a.txt")) == [{"text": "passed over"}]
    assert [source.name for source in find_sources([corpus.as_uri()])] == ["a ü=1/texts.txt", "b/texts.txt"]
    assert without_ids(rows(corpus)) == [{"text": "in a ü=1"}, {"text": "in b"}]
    two = find_sources([(corpus / name).as_uri() for name in ("a ü=1", "b")])
    assert [source.name for source in two] == [(corpus / name / "texts.txt").as_uri() for name in ("a ü=1", "b")]


def test_an_edited_line_changes_its_chunk_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CHUNK_ROWS", 64)
    monkeypatch.setattr(corpus, "READ_ROWS", 100)
    path = tmp_path / "a.txt"
    lines = [f"text {number}" for number in range(3000)]
    path.write_text("\n".join(lines))
    before = cut(path)
    assert 20 < len(before) < 100
    assert sum(chunk.share for chunk in before) == pytest.approx(1)
    path.write_text("\n".join(["a new first line", *lines[:1500], "a changed line", *lines[1501:-1]]))
    after = cut(path)
    assert sorted(row["text"] for one in after for row in one.rows.to_pylist()) == sorted(path.read_text().split("\n"))
    assert len({chunk.name for chunk in after} - {chunk.name for chunk in before}) <= 4
    kept = {row["text"]: row["id"] for chunk in before for row in chunk.rows.to_pylist()}
    same = {row["text"]: row["id"] for chunk in after for row in chunk.rows.to_pylist() if row["text"] in kept}
    assert same.items() <= kept.items()
    assert len(same) == 2998


def test_chunks_have_a_most_and_the_same_rows_come_as_often_as_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "MOST_ROWS", 10)
    (tmp_path / "a.txt").write_text("same\n" * 35)
    found = cut(tmp_path / "a.txt")
    assert [len(chunk.rows) for chunk in found] == [10, 10, 10, 5]
    assert len({chunk.name for chunk in found}) == 4


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"id": 1}\n', "has no column text; it has id"),
        ("a.jsonl", '{"id": 1, "text": 2}\n', "column text holds int64, not texts"),
        ("a.jsonl", '{"text": "a", "embedding": [1.0]}\n', "has a column embedding already"),
        ("a.jsonl", "{", "cannot be read as JSON lines"),
        ("a.csv", "id,body\n1,x\n", "has no column text; it has id, body"),
        ("a.csv", "", "cannot be read as CSV"),
        ("a.csv", "id,text,text\n1,x,y\n", "has several columns text"),
        ("a.parquet", "PAR", "cannot be read as Parquet"),
        ("a.txt", "caf\udce9\n", "cannot be read as text"),
    ],
)
def test_a_file_that_lacks_something_is_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    (source,) = find_sources([(tmp_path / name).as_uri()])
    with pytest.raises(WrongCorpus, match=f"{name}.*{message}"):
        check_source(source, Columns())


@pytest.mark.parametrize(
    ("files", "place", "message"),
    [
        ([], "", r"no file to encode: expected \.parquet, .*; it is empty"),
        (["notes.pdf", "README"], "", r"it has \.pdf, README"),
        ([], "nowhere", "nowhere is not there: expected a file or a folder"),
        (["a.txt", "b.csv"], "", r"several kinds \(CSV, text\): encode one kind at a time"),
    ],
)
def test_places_without_a_file_to_encode_are_named(files: list[str], place: str, message: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(WrongCorpus, match=message):
        find_sources([(tmp_path / place).as_uri()])
