"""A corpus through Ray on this machine: whole, edited, ended and gone on with, and refusals.

Ray is large and no part of `make test`: `make bulk-check` installs it into an environment of its own and runs these.
"""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tokenizers import Tokenizer

pytest.importorskip("ray", reason="the extra bulk is not installed")
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.lib.server import free_port
from deploy.bulk.__main__ import main
from deploy.bulk.encoder import TextEncoder
from deploy.bulk.output import AnotherRun, Output, Record
from model.artifact import GRAPH, TOKENIZER, describe_files, read_manifest, write_manifest
from tests.deploy.bulk_command import CLUSTER, CORES, command, encode, node
from tests.deploy.tools import ROOT
from tests.task_artifacts import TaskArtifact
from tests.texts import varied_texts

pytestmark = pytest.mark.slow

FILES, ROWS = 4, 100


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Files of a hundred rows; the fourth row of each has no text."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(FILES):
        texts: list[str | None] = [f"{number}: {text}" for text in varied_texts(ROWS)]
        texts[3] = None
        columns = {"id": [f"{number}-{row}" for row in range(ROWS)], "text": texts, "extra": list(range(ROWS))}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=25)
    return folder


@pytest.fixture
def long_corpus(tmp_path: Path) -> Path:
    """Sixteen files: when the first is done, others are not."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(16):
        texts = [f"text {row} of file {number}" for row in range(550)]
        columns = {"id": [f"{number}-{row}" for row in range(len(texts))], "text": texts}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return folder


def check(output: Path, corpus: Path, model: Path) -> None:
    """Every row once, as it was, with its vector."""
    found = pq.read_table(output).sort_by("id")
    given = pq.read_table(corpus).sort_by("id")
    assert found.drop(["embedding"]).to_pylist() == given.to_pylist()
    texts = given["text"].to_pylist()
    expected = TextEncoder.load(model).encode([text for text in texts if text is not None])
    vectors = found["embedding"].to_pylist()
    assert [vector is None for vector in vectors] == [text is None for text in texts]
    np.testing.assert_array_equal(np.array([v for v in vectors if v is not None], dtype=np.float32), expected)


def test_every_row_gets_its_vector_and_a_later_run_adds_what_is_new(
    corpus: Path, tmp_path: Path, embedder: TaskArtifact, ray_address: str
) -> None:
    output, there = tmp_path / "output", ("--address", ray_address)
    done = encode(embedder.artifact, corpus, output, *there)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert re.fullmatch(
        rf"{output} holds 400 rows; 396 texts encoded in [\d.]+ s \([\d.]+ texts/s\); 4 rows without text", line
    )
    summary = json.loads((output / "_summary.json").read_text())
    assert (summary["rows"], summary["encoded"], summary["without_text"], summary["failed_ids"]) == (400, 396, 4, [])
    assert pa.types.is_fixed_size_list(pq.read_table(output).schema.field("embedding").type)
    check(output, corpus, embedder.artifact)
    pq.write_table(pa.table({"id": ["new"], "text": ["a new text"], "extra": [0]}), corpus / "new.parquet")
    done = encode(embedder.artifact, corpus, output, *there)
    assert f"{output} holds {FILES * ROWS + 1} rows; 1 texts encoded" in done.stdout, done.stderr
    check(output, corpus, embedder.artifact)


def test_an_edited_text_file_has_each_of_its_lines_once(
    tmp_path: Path, embedder: TaskArtifact, ray_address: str
) -> None:
    output, path = tmp_path / "output", tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    encode(embedder.artifact, path, output, "--address", ray_address)
    path.write_text("zero\none\ntwo changed\n")
    done = encode(embedder.artifact, path, output, "--address", ray_address)
    assert "holds 3 rows; 3 texts encoded" in done.stdout, done.stderr
    assert done.stdout.endswith("; 2 rows removed that their files no longer have\n")
    found = {row["text"]: row["embedding"] for row in pq.read_table(output).to_pylist()}
    assert sorted(found) == ["one", "two changed", "zero"]
    expected = TextEncoder.load(embedder.artifact).encode(list(found))
    np.testing.assert_array_equal(np.array(list(found.values()), dtype=np.float32), expected)


def begin(model: Path, corpus: Path, output: Path, address: str, files: int = 1) -> subprocess.Popen[str]:
    """The command, at the moment when the output has this many files."""
    process = subprocess.Popen(  # noqa: S603 - our own program
        command(model, corpus, output, "--address", address),
        cwd=ROOT,
        env=CLUSTER,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while len(list(output.glob("*.parquet"))) < files and process.poll() is None:
        time.sleep(0.01)
    return process


def test_a_second_run_is_refused_and_a_killed_one_is_gone_on_with(
    long_corpus: Path, tmp_path: Path, embedder: TaskArtifact, ray_address: str
) -> None:
    output = tmp_path / "output"
    with begin(embedder.artifact, long_corpus, output, ray_address) as process:
        with pytest.raises(AnotherRun, match=f"written by process {process.pid} on "), Output(output.as_uri()).locked():
            pass
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    done = encode(embedder.artifact, long_corpus, output, "--address", ray_address)
    assert done.returncode == 0, done.stderr
    check(output, long_corpus, embedder.artifact)


def test_says_what_is_wrong_before_ray_starts(
    corpus: Path, tmp_path: Path, embedder: TaskArtifact, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "output"
    choices = {"prompt_name": None, "dimensions": None, "normalize": True, "text_column": "text", "id_column": "id"}
    Output(output.as_uri()).claim(Record.of(read_manifest(embedder.artifact), **choices))
    for more, message in {
        ("--text-column", "body"): "no column body; it has id, text, extra",
        ("--text-column", "extra"): "column extra holds int64, not texts",
        ("--prompt-name", "query"): "no named prompts",
        ("--dimensions", "10"): "was begun with dimensions None; name another --output",
    }.items():
        assert main(command(embedder.artifact, corpus, output, *more)[3:]) == 1
        assert message in capsys.readouterr().err


def test_a_file_that_breaks_off_in_its_middle_is_named(
    tmp_path: Path, embedder: TaskArtifact, ray_address: str
) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "corpus/b.jsonl").write_text('{"text": "b"}\n{')
    done = encode(embedder.artifact, tmp_path / "corpus", tmp_path / "output", "--address", ray_address)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"python -m deploy.bulk: file://{tmp_path}/corpus/b.jsonl cannot be read as JSON lines"
    )
    assert done.stderr.count("\n") == 1


def test_on_a_machine_that_is_a_node_already_ray_leaves_nothing_behind(
    tmp_path: Path, embedder: TaskArtifact, ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("a text\nanother\n")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        monkeypatch.setitem(CLUSTER, "TMPDIR", folder)
        before = sorted(os.listdir("/tmp/ray"))  # noqa: S108 - Ray's own
        done = encode(embedder.artifact, tmp_path / "a.txt", tmp_path / "output")
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(os.listdir("/tmp/ray")) == before  # noqa: S108 - likewise
        assert os.listdir(folder) == []
    assert pq.read_table(tmp_path / "output").num_rows == 2


def test_a_run_outlives_its_node_with_one_core_left(long_corpus: Path, tmp_path: Path, embedder: TaskArtifact) -> None:
    """Only the second node has cores: all that reads and encodes is on it, and dies with it."""
    output, port = tmp_path / "output", free_port()
    address = f"127.0.0.1:{port}"
    with node("--head", "--num-cpus=0", f"--port={port}", "--include-dashboard=false"):
        with node("--address", address, f"--num-cpus={CORES}"):
            process = begin(embedder.artifact, long_corpus, output, address, files=2)
        with process, node("--address", address, "--num-cpus=1"):
            said, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    assert said.startswith(f"{output} holds 8800 rows; ")
    check(output, long_corpus, embedder.artifact)


def test_a_terminal_shows_one_line(corpus: Path, tmp_path: Path, embedder: TaskArtifact, ray_address: str) -> None:
    said, shown = on_a_terminal(*command(embedder.artifact, corpus, tmp_path / "output", "--address", ray_address))
    assert said.startswith(f"{tmp_path / 'output'} holds 400 rows; 396 texts encoded")
    parts = [part for part in re.split(r"[\r\n]+", shown) if part.strip()]
    assert {part.split(":")[0] for part in parts} == {"encoding"}
    assert shown.count("\n") == 1  # the line is drawn over and over in its place
    assert parts[-1].startswith("encoding: 100%")


def on_a_terminal(*arguments: str) -> tuple[str, str]:
    """What a command says, and what it shows on the terminal that is its standard error."""
    ours, its = pty.openpty()
    with subprocess.Popen(  # noqa: S603 - ours
        arguments, cwd=ROOT, env=CLUSTER, stdout=subprocess.PIPE, stderr=its, text=True
    ) as process:
        os.close(its)
        shown = b""
        try:
            while read := os.read(ours, 1 << 16):
                shown += read
        except OSError:  # how Linux says that no process has the terminal any more
            os.close(ours)
        assert process.stdout is not None
        said = process.stdout.read()
    assert process.returncode == 0, shown
    return said, shown.decode()


def test_rows_that_fail_are_named_and_tried_again_by_every_run(
    tmp_path: Path, embedder: TaskArtifact, ray_address: str
) -> None:
    artifact = broken_at("dog", embedder.artifact, tmp_path / "artifact")
    (tmp_path / "a.csv").write_text("id,text\nx,a cat\ny,the dog\nz,a mat\n")
    for encoded in (2, 0):  # what was done is not done again
        done = encode(artifact, tmp_path / "a.csv", tmp_path / "output", "--address", ray_address)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.rstrip().endswith("; 1 rows failed, the first: y")
        summary = json.loads((tmp_path / "output/_summary.json").read_text())
        assert (summary["rows"], summary["encoded"], summary["failed"], summary["failed_ids"]) == (3, encoded, 1, ["y"])
    found = {row["id"]: row["embedding"] for row in pq.read_table(tmp_path / "output").to_pylist()}
    assert found["y"] is None
    vectors = np.array([found["x"], found["z"]], dtype=np.float32)
    np.testing.assert_array_equal(vectors, TextEncoder.load(embedder.artifact).encode(["a cat", "a mat"]))


def broken_at(word: str, artifact: Path, copy: Path) -> Path:
    """The same network, but what the word is embedded as is no number."""
    shutil.copytree(artifact, copy)
    ids = Tokenizer.from_file(str(copy / TOKENIZER)).encode(word, add_special_tokens=False).ids
    graph = onnx.load(copy / GRAPH)
    table = next(one for one in graph.graph.initializer if one.name == "encoder.embeddings.token.weight")
    rows = numpy_helper.to_array(table).copy()
    rows[ids[-1]] = np.nan
    table.CopyFrom(numpy_helper.from_array(rows, table.name))
    onnx.save(graph, copy / GRAPH)
    write_manifest(copy, replace(read_manifest(copy), files=describe_files(copy)))
    return copy
