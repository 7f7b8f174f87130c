"""A corpus through Ray on this machine: whole, ended and gone on with, and what is refused.

Ray is large and no part of `make test`: `make bulk-check` installs it into an environment of its own and runs these.
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="the extra bulk is not installed")
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from benchmarks.lib.server import free_port
from deploy.bulk.__main__ import main
from deploy.bulk.encoder import TextEncoder
from deploy.bulk.record import Record
from model.artifact import read_manifest
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
    """Eight files with more rows than an actor is handed at once: when the first is done, others are not."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(8):
        texts = [f"text {row} of file {number}" for row in range(1100)]
        columns = {"id": [f"{number}-{row}" for row in range(len(texts))], "text": texts}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return folder


def check(output: Path, corpus: Path, model: Path) -> None:
    """Every row once, as it was, with its vector."""
    found = pq.read_table(output).sort_by("id")
    given = pq.read_table(corpus).sort_by("id")
    assert found.drop(["embedding"]) == given
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
    check(output, corpus, embedder.artifact)
    new = pa.table({"id": ["new"], "text": ["a new text"], "extra": [0]})
    pq.write_table(new, corpus / "new.parquet")
    done = encode(embedder.artifact, corpus, output, *there)
    assert f"{output} holds {FILES * ROWS + 1} rows; 1 texts encoded" in done.stdout, done.stderr
    check(output, corpus, embedder.artifact)


def begin(model: Path, corpus: Path, output: Path, address: str, files: int = 1) -> subprocess.Popen[str]:
    """The command, at the moment when the output has so many files."""
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


def test_goes_on_where_it_was_killed(
    long_corpus: Path, tmp_path: Path, embedder: TaskArtifact, ray_address: str
) -> None:
    output = tmp_path / "output"
    with begin(embedder.artifact, long_corpus, output, ray_address) as process:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    done = encode(embedder.artifact, long_corpus, output, "--address", ray_address)
    assert done.returncode == 0, done.stderr
    check(output, long_corpus, embedder.artifact)


def claim(output: Path, model: Path) -> None:
    """As a run without options does first."""
    choices = {"prompt_name": None, "dimensions": None, "normalize": True, "text_column": "text", "id_column": "id"}
    Record.of(read_manifest(model), **choices).claim(LocalFileSystem(), str(output))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--text-column", "body"), "no column body; it has id, text, extra"),
        (("--text-column", "extra"), "column extra holds int64, not texts"),
        (("--prompt-name", "query"), "no named prompts"),
        (("--dimensions", "10"), "was begun with dimensions None; name another --output"),
    ],
)
def test_says_what_is_wrong_before_ray_starts(
    corpus: Path,
    tmp_path: Path,
    embedder: TaskArtifact,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    message: str,
) -> None:
    output = tmp_path / "output"
    claim(output, embedder.artifact)
    assert main(command(embedder.artifact, corpus, output, *more)[3:]) == 1
    assert message in capsys.readouterr().err


def test_takes_a_folder_of_text_files_on_a_machine_that_is_a_node_already(
    tmp_path: Path, embedder: TaskArtifact, ray_address: str
) -> None:
    (tmp_path / "corpus").mkdir()
    for name in "ab":
        (tmp_path / "corpus" / f"{name}.txt").write_text(f"a text of {name}\n")
    done = encode(embedder.artifact, tmp_path / "corpus", tmp_path / "output")
    assert (done.returncode, done.stderr) == (0, "")
    found = pq.read_table(tmp_path / "output").sort_by("id").to_pylist()
    assert [(row["id"], row["text"]) for row in found] == [("a.txt:1", "a text of a"), ("b.txt:1", "a text of b")]
    vectors = np.array([row["embedding"] for row in found], dtype=np.float32)
    expected = TextEncoder.load(embedder.artifact).encode(["a text of a", "a text of b"])
    np.testing.assert_array_equal(vectors, expected)


def test_a_run_that_goes_on_outlives_its_node_with_one_core_left(
    long_corpus: Path, tmp_path: Path, embedder: TaskArtifact
) -> None:
    """Only the second node has cores: all that reads and encodes is on it, and dies with it."""
    output, port = tmp_path / "output", free_port()
    write_first_file(long_corpus, output, embedder.artifact)
    address = f"127.0.0.1:{port}"
    with node("--head", "--num-cpus=0", f"--port={port}", "--include-dashboard=false"):
        with node("--address", address, f"--num-cpus={CORES}"):
            process = begin(embedder.artifact, long_corpus, output, address, files=2)
        with process, node("--address", address, "--num-cpus=1"):
            said, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    assert said.startswith(f"{output} holds 8800 rows; ")
    check(output, long_corpus, embedder.artifact)


def write_first_file(corpus: Path, output: Path, model: Path) -> None:
    """The output of a run that was ended after the corpus' first file."""
    claim(output, model)
    rows = pq.read_table(corpus / "0.parquet")
    vectors = TextEncoder.load(model).encode(rows["text"].to_pylist())
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    pq.write_table(rows.append_column("embedding", column), output / "before.parquet")
