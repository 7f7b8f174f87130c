"""`polyhead encode`: every way in and out, and errors, over a fake backend."""

import errno
import gc
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import Table, parquet

from polyhead import Engine
from polyhead import encode as command
from polyhead.cli import main
from polyhead.texts import count_texts
from service.settings import Settings
from tests.command import Run
from tests.service.fake_engine import HIDDEN_SIZE, FakeBackend, load_fake_engine, write_fake_artifact
from tests.service.routes.test_encode import expected_vector, ids_of
from tests.task_artifacts import TaskArtifact

TEXTS = ["the cat sat", "", "a dog on the mat"]


@pytest.fixture(autouse=True)
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = write_fake_artifact(tmp_path / "artifacts" / "all-MiniLM-L6-v2")
    settings = Settings.model_construct(model=made, workers=1)
    monkeypatch.setattr(Engine, "load", lambda _: load_fake_engine(settings, FakeBackend()))
    monkeypatch.setattr(command, "PORTION", 2)  # several portions
    monkeypatch.chdir(tmp_path)
    return made


def expected(**options: Any) -> list[Any]:
    return [expected_vector(ids_of(text), **options) for text in TEXTS]


def lines_of(run: Run, *given: str) -> list[dict[str, Any]]:
    """What `polyhead encode` prints."""
    return [json.loads(line) for line in run("encode", *given).splitlines()]


def test_vectors_become_lines_of_json_an_array_or_parquet(run: Run) -> None:
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    lines = lines_of(run, *TEXTS, "--dimensions", "3")
    assert [line["text"] for line in lines] == TEXTS
    close([line["embedding"] for line in lines], expected(dimensions=3))
    Path("in.txt").write_text("\n".join(TEXTS) + "\n")
    run("encode", "--input", "in.txt", "--output", "OUT.NPY", "--no-normalize")
    found = np.load("OUT.NPY")
    assert (found.dtype, found.shape) == (np.float32, (3, HIDDEN_SIZE))
    close(found, expected(normalize=False))
    Path("in.jsonl").write_text("\n".join(json.dumps({"body": text, "id": 1}) for text in TEXTS))
    run("encode", "--input", "in.jsonl", "--field", "body", "--output", "out.parquet")
    table = parquet.read_table("out.parquet")
    assert table["text"].to_pylist() == TEXTS
    close(table["embedding"].to_pylist(), expected())


@pytest.mark.parametrize(
    ("name", "content", "flags", "texts"),
    [
        ("in.txt", "\ufeffcat\r\ndog\r\n", [], ["cat", "dog"]),  # as Windows programs write
        ("IN.JSONL", '\ufeff"cat"\r\n\r\n"dog"', [], ["cat", "dog"]),
        ("in.csv", 'id,body\n1,cat\n2,"a ""dog"",\nand"\n', ["--field", "body"], ["cat", 'a "dog",\nand']),
        ("in.tsv", 'id\tbody\n1\tcat\n2\t"a ""dog""\t\nand"\n', ["--field", "body"], ["cat", 'a "dog"\t\nand']),
    ],
)
def test_a_file_is_read_by_its_ending(name: str, content: str, flags: list[str], texts: list[str], run: Run) -> None:
    Path(name).write_bytes(content.encode())
    assert [line["text"] for line in lines_of(run, "--input", name, *flags)] == texts


def test_texts_that_were_cut_are_marked_and_counted(run: Run) -> None:
    assert [line["truncated"] for line in lines_of(run, "cat", "cat " * 40)] == [False, True]
    assert run.said == "polyhead encode: 1 of 2 texts were cut to the 16 tokens that the model reads\n"
    run("encode", "cat", "cat " * 40, "--output", "out.parquet")
    assert parquet.read_table("out.parquet")["truncated"].to_pylist() == [False, True]


@pytest.mark.parametrize("name", ["in.csv", "in.tsv.gz", "in.jsonl.gz", "in.parquet", "in.data"])
def test_ids_are_carried_along(name: str, run: Run) -> None:
    ids: list[Any] = ["a", "b", "c"] if name in {"in.csv", "in.tsv.gz"} else [7, 8, 9]
    separator = "\t" if "tsv" in name else ","
    table = "".join(f"{separator.join(map(str, row))}\n" for row in [("key", "text"), *zip(ids, TEXTS, strict=True)])
    lines = "".join(json.dumps({"key": key, "text": text}) + "\n" for key, text in zip(ids, TEXTS, strict=True))
    if name == "in.parquet":
        parquet.write_table(Table.from_pydict({"text": TEXTS, "key": ids}), name)
    else:
        content = (table if "sv" in name else lines).encode()
        Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    flags = ["--input", name, "--id", "key", *(["--format", "jsonl"] if name == "in.data" else [])]
    assert [line["id"] for line in lines_of(run, *flags)] == ids
    run("encode", *flags, "--output", "out.parquet")
    assert run.said == f"polyhead encode: wrote 3 x {HIDDEN_SIZE} to out.parquet, 0 cut\n"
    assert parquet.read_table("out.parquet")["id"].to_pylist() == ids
    assert "an array has no place for ids" in run("encode", *flags, "--output", "out.npy", code=1)
    said = run("encode", *flags[:2], *flags[4:], "--id", "missing", code=1)
    assert re.search(r"expected the id as 'missing'|name the one with the ids with --id", said)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "'key' holds NoneType, expected an id"),
        ([1], "'key' holds list, expected an id"),
        (True, "'key' holds bool, expected an id"),
        (float("nan"), "'key' holds nan, expected an id"),
        (1 << 63, "'key' holds 9223372036854775808, expected an id of at most 63 bits, or a text"),
        (b"cat", "'key' holds bytes, expected an id"),
        (Decimal("1.50"), None),
        (date(2026, 1, 2), None),
    ],
)
def test_an_id_is_a_number_or_a_text(key: Any, message: str | None, run: Run) -> None:
    name = "in.jsonl" if isinstance(key, int | None) else "in.parquet"
    if name == "in.jsonl":
        Path(name).write_text(json.dumps({"text": "cat", "key": key}))
    else:
        parquet.write_table(Table.from_pydict({"text": ["cat"], "key": [key]}), name)
    for out in ("out.jsonl", "out.parquet"):
        run("encode", "--input", name, "--id", "key", "--output", out, code=1 if message else 0)
        assert (message or "wrote 1 x") in run.said
    if message is None:
        assert json.loads(Path("out.jsonl").read_text())["id"] == str(key)
        assert parquet.read_table("out.parquet")["id"].to_pylist() == [str(key)]


@pytest.mark.parametrize("given", [[], ["-"], ["--input", "-"], ["-", "--format", "jsonl", "--id", "id"]])
def test_standard_input_is_read_if_nothing_or_a_dash_is_named(
    given: list[str], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    has_ids = "--id" in given
    lines = [json.dumps({"id": 5, "text": text}) if has_ids else text for text in TEXTS]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    found = lines_of(run, *given)
    assert [(line.get("id"), line["text"]) for line in found] == [(5 if has_ids else None, text) for text in TEXTS]


def test_a_pipe_is_answered_as_its_texts_come(embedder: TaskArtifact) -> None:
    command = [sys.executable, "-m", "polyhead", "encode", "--model", str(embedder.artifact)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        for text in ("a cat", "the dog"):
            run.stdin.write(f"{text}\n")
            run.stdin.flush()
            assert json.loads(run.stdout.readline())["text"] == text  # while the pipe is open
        run.terminate()
        assert run.wait() == 130


@pytest.mark.parametrize("name", ["out.parquet", "out.npy", "out.jsonl"])
def test_a_fault_behind_written_rows_is_one_line_and_leaves_nothing(
    name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)  # of what `__del__` raises
    parquet.write_table(Table.from_pydict({"text": ["cat"] * 9 + [None]}), "in.parquet")
    before = sorted(Path().iterdir())
    said = run("encode", "--input", "in.parquet", "--output", name, code=1)
    assert "in.parquet, row 10: 'text' holds NoneType, expected a text" in said.splitlines()[-1]
    gc.collect()
    assert not raised
    assert sorted(Path().iterdir()) == before


def test_a_link_to_the_output_stays_a_link() -> None:
    Path("big").mkdir()
    Path("big/real.npy").write_bytes(b"before")
    Path("out.npy").symlink_to("big/real.npy")
    assert main(["encode", "cat", "--output", "out.npy"]) == 0
    assert Path("out.npy").is_symlink()
    assert np.load("big/real.npy").shape == (1, HIDDEN_SIZE)


BAD_FILES: list[tuple[bytes, str, str, str]] = [  # content, name, flags besides --output, and what is said
    (b"", "in.txt", "", "no texts were given"),
    (b"fine\n\xff\xfe\n", "in.txt", "", "line 2: not UTF-8"),
    (b'{"text": "a"}\n{"text": \n', "in.jsonl", "", "line 2: not JSON"),
    (b'{"text": "a"}\n{"body": "b"}\n', "in.jsonl", "", "line 2: has body; expected the text as 'text'"),
    (b'{"text": null}\n', "in.jsonl", "", "line 1: 'text' holds NoneType, expected a text"),
    (b"{}\n", "in.jsonl", "", "line 1: has nothing; expected the text as 'text'"),
    (b"[1]\n", "in.jsonl", "", "is list; expected the text"),
    (b"[" * 100_000, "in.jsonl", "", "line 1: not JSON: maximum recursion depth"),
    (b"no table", "in.parquet", "", "in.parquet cannot be read as Parquet: Parquet magic bytes not found"),
    (gzip.compress(b"cat\n" * 999, mtime=0)[:-9], "in.txt.gz", "", "cannot read in.txt.gz"),
    (b"cat", "in.txt.gz", "", "cannot read in.txt.gz: Not a gzipped file"),
    (b"cat\n", "in.txt", "--dimensions 99", "dimensions: expected 1 to 8"),
    (b"a\nb\n" + b"cat " * 40, "in.txt", "--no-truncate", "text 3: 42 tokens, the model takes 16"),
    (b"cat\n", "in.txt", "--prompt-name query", "no named prompts"),
    (b"", "in.csv", "", "in.csv has columns (none); name the one with the texts"),
    (b"text\ncat, dog\n", "in.csv", "", "in.csv, line 2: expected 1 cells; put a cell with the separator"),
    (b"text,key\ncat\n", "in.csv", "", "in.csv, line 2: expected 2 cells"),
    (b'id,text\n1,5" disk\n2,"x" y\n', "in.csv", "", "in.csv, line 3: a cell that holds quotes is in quotes"),
    (b'id\ttext\n1\t"x" y\n', "in.tsv", "", "each of its own written twice ('\\t' expected after '\"')"),
    (b'text\na\n"open\nb\n', "in.csv", "", "in.csv, line 3: a cell that holds quotes is in quotes"),
    (b"id;text\n1;cat\n", "in.csv", "", "in.csv has columns id;text; name the one with the texts with --field"),
    (b"text,text\ncat,dog\n", "in.csv", "", "has 2 columns text; rename them, or name another with --field"),
    (b'["cat",\n"dog"]\n', "in.json", "", "in.json is one document: write an object a line as .jsonl"),
]


def test_a_text_that_is_the_name_of_a_file_is_said(run: Run) -> None:
    Path("in.txt").write_text("cat")
    assert [line["text"] for line in lines_of(run, "in.txt")] == ["in.txt"]
    assert run.said == "polyhead encode: in.txt is taken for a text; --input in.txt reads the file\n"
    lines_of(run, "cat", "a" * 5000)
    assert run.said == ""


@pytest.mark.parametrize(("content", "name", "flags", "message"), BAD_FILES, ids=[row[-1] for row in BAD_FILES])
def test_what_goes_wrong_is_said_and_leaves_no_file(
    content: bytes, name: str, flags: str, message: str, run: Run
) -> None:
    Path(name).write_bytes(content)
    assert message in run("encode", "--input", name, "--output", "out.npy", *flags.split(), code=1)
    assert sorted(path.name for path in Path().iterdir()) == sorted(["artifacts", name])


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ("cat --output folder.npy", 1, "folder.npy is a folder"),
        ("--input in.txt --pair-field key", 2, "--pair-field: only with --pairs"),
        *((f"cat {flag}", 2, "texts of the command line have none") for flag in ("--field key", "--format csv")),
        ("--input missing.txt", 1, "cannot read missing.txt: No such file"),
        ("--input in.parquet", 1, "has columns body; name the one with the texts with --field"),
        ("--input in.parquet --field body --output ./in.parquet", 1, "is the input, which would be lost"),
        ("cat --output out.csv", 1, "expected a file that ends in .npy, .parquet, .jsonl"),
        ("cat --output nowhere/out.npy", 1, "there is no folder nowhere"),
        ("cat --input in.txt", 2, "not both"),
        ("--input in.txt --id key", 1, "lines of text, which have no ids"),
        ("cat --id key", 2, "texts of the command line have none of these"),
    ],
)
def test_what_cannot_be_given_is_said(given: str, code: int, message: str, run: Run) -> None:
    parquet.write_table(Table.from_pydict({"body": TEXTS}), "in.parquet")
    Path("in.txt").write_text("cat")
    Path("folder.npy").mkdir()
    assert message in run("encode", *given.split(), code=code)


def test_a_progress_bar_knows_how_many_texts_a_file_has() -> None:
    parquet.write_table(Table.from_pydict({"text": TEXTS}), "in.parquet")
    Path("in.txt").write_text("cat\ndog\n")
    Path("bad.parquet").write_bytes(b"no table")
    assert [count_texts(name) for name in ("in.parquet", "in.txt", "bad.parquet", "-")] == [3, 2, None, None]


@pytest.mark.parametrize(("flags", "is_shown"), [([], False), (["--output", "out.npy"], True)])
def test_a_progress_bar_stays_out_of_lines_on_the_terminal(
    flags: list[str], is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        buffer = io.BytesIO()

        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "stdout", Terminal())
    Path("in.txt").write_text("cat")
    assert main(["encode", "--input", "in.txt", *flags]) == 0
    assert ("texts/s" in shown.getvalue()) == is_shown


def test_a_file_system_that_takes_no_file_is_said(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    open_file = Path.open

    def refuse(self: Path, *_: object, **__: object) -> None:  # as Linux does, of files that are not there too
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    def read_only(self: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        return open_file(self, mode, *more, **named) if mode in {"r", "rb"} else refuse(self)

    monkeypatch.setattr(Path, "open", read_only)
    monkeypatch.setattr(Path, "unlink", refuse)
    said = "polyhead encode: cannot write out.npy: Read-only file system\n"
    assert run("encode", "cat", "--output", "out.npy", code=1) == said


@pytest.mark.parametrize("flags", [[], ["--output", "out.npy"]])
def test_what_fails_in_loading_is_not_said_of_the_output(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def fail(_: Path) -> Engine:
        raise PermissionError(errno.EACCES, "Permission denied", "mine/manifest.json")

    monkeypatch.setattr(Engine, "load", fail)
    said = "polyhead encode: cannot load mine: [Errno 13] Permission denied: 'mine/manifest.json'\n"
    assert run("encode", "cat", "--model", "mine", *flags, code=1) == said


@pytest.mark.parametrize(
    ("closed", "given", "code", "message"),
    [
        ("stderr", "--input in.txt --output out.npy", 0, ""),  # needs no progress
        ("stdout", "cat", 1, "polyhead encode: standard output is closed\n"),
        ("stdin", "", 2, "no texts: give them as arguments, with --input FILE, or pipe them in\n"),
        ("stdin", "--input -", 1, "polyhead encode: standard input is closed\n"),
    ],
)
def test_a_closed_stream_is_said_where_it_is_needed(
    closed: str, given: str, code: int, message: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    Path("in.txt").write_text("cat")
    monkeypatch.setattr(sys, closed, None)
    run("encode", *given.split(), code=code)
    assert run.said.endswith(message)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_half_of_a_file(
    number: signal.Signals, receive: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    seen: list[Path] = []

    def encode(*_: object, **__: object) -> None:
        seen.extend(Path().glob(".out.npy.*"))
        receive(number)

    monkeypatch.setattr(Engine, "encode", encode)
    assert run("encode", "cat", "--output", "out.npy", code=130) == "interrupted\n"
    assert len(seen) == 1
    assert [path.name for path in Path().iterdir()] == ["artifacts"]
    assert signal.getsignal(number) is signal.SIG_DFL


def test_text_that_is_not_unicode_is_said(run: Run) -> None:
    said = run("encode", "cat", "a\udcff", code=1)  # as Python hands on an argument that is not UTF-8
    assert said == "polyhead encode: text 2: not UTF-8 (character 2 of the text)\n"
    Path("in.jsonl").write_text(r'{"text": "\ud800"}')
    said = "polyhead encode: text 1: not UTF-8 (character 1 of the text)\n"
    assert run("encode", "--input", "in.jsonl", code=1) == said
    Path("in.jsonl").write_text(r'{"text": "cat", "id": "a\ud800"}')
    said = "polyhead encode: id 1: not UTF-8 (character 2 of the id)\n"
    assert run("encode", "--input", "in.jsonl", "--id", "id", code=1) == said
