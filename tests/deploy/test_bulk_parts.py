"""Bulk encoding without Ray: files become chunks, texts become the service's vectors, and the folder of the result."""

import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.bulk import corpus
from deploy.bulk.corpus import Chunk, Columns, Source, WrongCorpus, check_source, chunks, find_sources, uri_of
from deploy.bulk.encoder import TextEncoder, check_choices
from deploy.bulk.output import LOCK, SUMMARY, AnotherRun, Output
from model.artifact import Manifest
from service.errors import InferenceFailed, ServiceError
from tests.deploy.tools import ROOT
from tests.service.fake_engine import HIDDEN_SIZE, make_manifest, write_fake_artifact
from tests.service.process import ServerProcess, wait_until
from tests.texts import varied_texts

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
        ("a.txt", "\ufeffone\r\ntwo\n\nvi\rer: ü", [{"text": text} for text in ("one", "two", None, "vi\rer: ü")]),
        ("ü b%20#?=.ndjson", '{"text": "one"}\n{"text": "two"}\n', [{"text": "one"}, {"text": "two"}]),
        ("a.jsonl", '\ufeff{"text": "2020-01-31", "at": {"days": ["2020-01-31"]}}\r\n', [
            {"text": "2020-01-31", "at": {"days": ["2020-01-31"]}},
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
        ("a.jsonl", '{"text": "a", "id": 18446744073709551615}\n', "column id holds fractions or too large numbers"),
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


def test_an_empty_part_has_no_rows_and_a_later_rows_other_columns_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 64)
    (tmp_path / "a.jsonl").touch()
    assert rows(tmp_path / "a.jsonl") == []
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n' * 20 + '{"text": "two", "title": "new"}\n')
    with pytest.raises(WrongCorpus, match="unexpected field; columns and their types are those of a file"):
        rows(tmp_path / "b.jsonl")


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


def test_what_the_model_has_not(tmp_path: Path) -> None:
    manifest = make_manifest(write_fake_artifact(tmp_path / "artifact"))
    for dimensions in (0, HIDDEN_SIZE + 1):
        with pytest.raises(ServiceError, match="dimensions: "):
            check_choices(manifest, {"dimensions": dimensions})
    with pytest.raises(ServiceError, match="no named prompts"):
        check_choices(manifest, {"dimensions": HIDDEN_SIZE, "prompt_name": "query"})
    classifier = SimpleNamespace(task="token_classification", model="tagger")
    with pytest.raises(ValueError, match="tagger is for token-classification: only an embedder gives vectors"):
        check_choices(cast(Manifest, classifier), {})


def test_a_failing_text_costs_its_row_and_is_tried_again() -> None:
    is_broken = True

    def encode(texts: Sequence[str], **_: object) -> SimpleNamespace:
        if is_broken and "bad" in texts:
            raise InferenceFailed()
        return SimpleNamespace(embeddings=[[len(text), 1, 2] for text in texts])

    encoder = TextEncoder(Mock(encode=encode), dimensions=3)
    table = pa.table({"id": list("abcd"), "text": ["one", "bad", None, "three"]})
    rows, failed = encoder.add_vectors(table, "text")
    assert (rows["embedding"].to_pylist(), failed) == ([[3, 1, 2], None, None, [5, 1, 2]], [1])
    assert encoder.add_vectors(rows, "text")[1] == [1]
    is_broken = False
    rows, failed = encoder.add_vectors(rows, "text")
    assert (rows["embedding"].to_pylist(), failed) == ([[3, 1, 2], [3, 1, 2], None, [5, 1, 2]], [])


def test_gives_the_services_vectors(server: ServerProcess, default_artifact: Path) -> None:
    texts = varied_texts(60)
    with closing(TextEncoder.load(default_artifact, dimensions=200)) as encoder:
        vectors = encoder.encode(texts)
    body = {"inputs": texts, "dimensions": 200, "encoding_format": "base64"}
    answer = server.post("/encode", body)
    served = [np.frombuffer(base64.b64decode(vector), dtype="<f4") for vector in answer["embeddings"]]
    np.testing.assert_array_equal(vectors, np.stack(served))


NEEDED = ["--model", "a", "--input", "b", "--output", "c"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--help"], 0, "--max-batch-tokens"),
        ([*NEEDED, "--workers", "-1"], 2, "argument --workers: expected a whole number from 0, got '-1'"),
        (NEEDED, 1, "python -m deploy.bulk: ray is missing: install the bulk extra, pip install '.[cpu,bulk]'\n"),
    ],
)
def test_without_ray_the_command_says_what_to_install(words: list[str], code: int, said: str) -> None:
    program = "import runpy, sys; sys.modules['ray'] = None; runpy.run_module('deploy.bulk', run_name='__main__')"
    run = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, said in run.stdout + run.stderr) == (code, True)


RECORD = {"model": "m", "identity": "1", "dimensions": None}


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output((tmp_path / "output").as_uri())


def table(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "embedding": [[1.0]] * len(ids)})


def test_what_is_written_is_done_and_its_failures_are_known(output: Output, tmp_path: Path) -> None:
    assert output.failures("a-1-1") is None
    output.write("a-1-1", table(1, 2), failed=0)
    output.write("a-2-1", table(3), failed=1)
    assert (output.failures("a-1-1"), output.failures("a-2-1"), output.failures("a-3-1")) == (0, 1, None)
    assert (output.read("a-1-1").to_pylist(), output.count_rows()) == (table(1, 2).to_pylist(), 3)
    output.write_json(SUMMARY, {"failed_ids": [7, "a", date(2020, 1, 31), Decimal("1.5")]})
    assert json.loads((tmp_path / "output/_summary.json").read_text()) == {"failed_ids": [7, "a", "2020-01-31", "1.5"]}
    assert pq.read_table(tmp_path / "output").num_rows == 3  # and readers pass over all that is ours
    assert not list((tmp_path / "output/_partial").iterdir())
    ids, vectors = (pq.read_metadata(tmp_path / "output/a-1-1.parquet").row_group(0).column(place) for place in (0, 1))
    assert (ids.has_dictionary_page, vectors.has_dictionary_page) == (True, False)
    output.write("a-4-1", table(*range(10_000)), failed=0)  # in parts
    written = pq.read_metadata(tmp_path / "output/a-4-1.parquet")
    assert [written.row_group(part).num_rows for part in range(written.num_row_groups)] == [4096, 4096, 1808]


def test_chunks_that_a_file_no_longer_has_go_and_those_of_other_files_stay(output: Output) -> None:
    here, elsewhere = (Source("", name, "text", 1) for name in ("a.txt", "b.txt"))
    for prefix, ids in ((here.prefix, (1, 2)), (elsewhere.prefix, (3,))):
        output.write(f"{prefix}-1-1", table(*ids), failed=0)
    output.write(f"{here.prefix}-2-1", table(4), failed=0)
    assert output.sweep([here], {f"{here.prefix}-2-1"}) == (2, 1)
    assert output.count_rows() == 2


def test_an_output_is_of_one_network_and_one_choice(output: Output, tmp_path: Path) -> None:
    output.claim(RECORD)
    output.claim(RECORD)
    other = {**RECORD, "identity": "2"}  # of the same source, pruned
    with pytest.raises(AnotherRun, match=r"was begun with identity '1'; name another --output"):
        output.claim(other)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/x.parquet").touch()
    with pytest.raises(AnotherRun, match=r"holds x\.parquet, which no such run wrote; name another --output"):
        Output((tmp_path / "theirs").as_uri()).claim(RECORD)


def test_a_lock_keeps_others_out_and_is_renewed_though_it_was_not_written_once(
    output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[float] = []
    write = Output.write_json

    def fail_once(self: Output, name: str, content: dict[str, Any]) -> None:
        written.append(content["seen"])
        if len(written) == 2:
            raise OSError("no space left on device")
        write(self, name, content)

    monkeypatch.setattr(Output, "write_json", fail_once)
    monkeypatch.setattr("deploy.bulk.output.BEAT_SECONDS", 0.01)
    with output.locked():
        wait_until(lambda: len(written) > 3)
        seen = json.loads((tmp_path / "output" / LOCK).read_text())["seen"]
        held = rf"written by process {os.getpid()} on {socket.gethostname()}, since 20\d\d-"
        with pytest.raises(AnotherRun, match=held), Output(output.uri).locked():
            pass
    assert seen in written[2:]
    with output.locked():
        pass


def gone() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("holder", "is_held"),
    [
        ({"host": socket.gethostname(), "pid": gone(), "seen": 0}, False),  # killed here
        ({"host": socket.gethostname(), "pid": os.getpid(), "seen": -3600}, False),  # its number, used again
        ({"host": "elsewhere", "pid": 1, "seen": 0}, True),
        ({"host": "elsewhere", "pid": 1, "seen": -3600}, False),
    ],
)
def test_the_lock_of_a_run_that_was_killed_is_taken_over(
    holder: dict[str, Any], is_held: bool, output: Output, tmp_path: Path
) -> None:
    (tmp_path / "output/_partial").mkdir(parents=True)
    (tmp_path / "output/_partial/half").touch()
    lock = {"run": "1", "since": "2026-01-01", **holder, "seen": time.time() + holder["seen"]}
    (tmp_path / "output" / LOCK).write_text(json.dumps(lock))
    if is_held:
        with pytest.raises(AnotherRun, match="process 1 on elsewhere, since 2026-01-01"), output.locked():
            pass
    else:
        with output.locked():
            assert not (tmp_path / "output/_partial").exists()
        assert not (tmp_path / "output" / LOCK).exists()
