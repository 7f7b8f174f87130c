"""A corpus through Ray on this machine: whole, ended and gone on with, and what is refused.

Ray is large and no part of `make test`: `make bulk-check` installs it into an environment of its own and runs these.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="the extra bulk is not installed")
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.lib.server import free_port
from deploy.bulk.encoder import TextEncoder
from tests.deploy.bulk_command import command, encode
from tests.deploy.tools import ROOT
from tests.texts import varied_texts

pytestmark = pytest.mark.slow

FILES, ROWS = 4, 100
CLUSTER = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a token of at least so many characters"}
"""Nodes and drivers know each other by the token."""


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
    corpus: Path, tmp_path: Path, default_artifact: Path
) -> None:
    output = tmp_path / "output"
    done = encode(default_artifact, corpus, output)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert re.fullmatch(
        rf"{output} holds 400 rows; 396 texts encoded in [\d.]+ s \([\d.]+ texts/s\); 4 rows without text", line
    )
    summary = json.loads((output / "_summary.json").read_text())
    assert (summary["rows"], summary["encoded"], summary["without_text"], summary["failed_ids"]) == (400, 396, 4, [])
    check(output, corpus, default_artifact)
    other = encode(default_artifact, corpus, output, "--dimensions", "10")
    assert other.returncode == 1
    assert "was begun with dimensions None; name another --output" in other.stderr.splitlines()[-1]
    new = pa.table({"id": ["new"], "text": ["a new text"], "extra": [0]})
    pq.write_table(new, corpus / "new.parquet")
    done = encode(default_artifact, corpus, output)
    assert f"{output} holds {FILES * ROWS + 1} rows" in done.stdout, done.stderr
    check(output, corpus, default_artifact)


def test_goes_on_where_it_was_killed(tmp_path: Path, default_artifact: Path) -> None:
    corpus, output = tmp_path / "corpus", tmp_path / "output"
    corpus.mkdir()
    for number in range(6):  # several times what an actor is handed at once, so that the first file is not the last
        texts = [f"text {row} of file {number}" for row in range(600)]
        columns = {"id": [f"{number}-{row}" for row in range(600)], "text": texts}
        pq.write_table(pa.table(columns), corpus / f"{number}.parquet")
    process = subprocess.Popen(  # noqa: S603 - our own program
        command(default_artifact, corpus, output), cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 200
    while not list(output.glob("*.parquet")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = encode(default_artifact, corpus, output)
    assert done.returncode == 0, done.stderr
    check(output, corpus, default_artifact)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--text-column", "body"), "no column body; it has id, text, extra"),
        (("--text-column", "extra"), "column extra holds int64, not texts"),
        (("--prompt-name", "query"), "no named prompts"),
    ],
)
def test_says_what_is_wrong(
    corpus: Path, tmp_path: Path, default_artifact: Path, more: tuple[str, ...], message: str
) -> None:
    done = encode(default_artifact, corpus, tmp_path / "output", *more)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]


def test_takes_a_folder_of_text_files_on_a_machine_that_is_a_node_already(
    tmp_path: Path, default_artifact: Path
) -> None:
    (tmp_path / "corpus").mkdir()
    for name in "ab":
        (tmp_path / "corpus" / f"{name}.txt").write_text(f"a text of {name}\n")
    with node("--head", "--num-cpus=1", f"--port={free_port()}", "--include-dashboard=false"):
        done = encode(default_artifact, tmp_path / "corpus", tmp_path / "output")
    assert (done.returncode, done.stderr) == (0, "")
    found = pq.read_table(tmp_path / "output").sort_by("id").to_pylist()
    assert [(row["id"], row["text"]) for row in found] == [("a.txt:1", "a text of a"), ("b.txt:1", "a text of b")]
    vectors = np.array([row["embedding"] for row in found], dtype=np.float32)
    expected = TextEncoder.load(default_artifact).encode(["a text of a", "a text of b"])
    np.testing.assert_array_equal(vectors, expected)


def test_rows_of_a_node_that_dies_are_encoded_by_another(tmp_path: Path, default_artifact: Path) -> None:
    corpus, output = tmp_path / "corpus", tmp_path / "output"
    corpus.mkdir()
    for number in range(8):
        texts = [f"text {row} of file {number}" for row in range(600)]
        columns = {"id": [f"{number}-{row}" for row in range(600)], "text": texts}
        pq.write_table(pa.table(columns), corpus / f"{number}.parquet")
    with node("--head", "--num-cpus=3", f"--port={(port := free_port())}", "--include-dashboard=false"):
        address = f"127.0.0.1:{port}"
        with node("--address", address, "--num-cpus=1") as second:
            process = subprocess.Popen(  # noqa: S603 - our own program
                command(default_artifact, corpus, output, "--address", address),
                cwd=ROOT,
                env=CLUSTER,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            while not list(output.glob("*.parquet")) and process.poll() is None:
                time.sleep(0.01)
            os.killpg(second.pid, signal.SIGKILL)
            said, errors = process.communicate(timeout=400)
            assert (process.returncode, errors) == (0, "")
            assert said.startswith(f"{output} holds 4800 rows; ")
    check(output, corpus, default_artifact)


@contextmanager
def node(*flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Ray node on this machine, in a process group of its own, until the block ends."""
    ray = Path(sys.executable).with_name("ray")
    command = [str(ray), "start", "--block", "--node-ip-address=127.0.0.1", "--disable-usage-stats", *flags]
    with subprocess.Popen(  # noqa: S603 - Ray's
        command, env=CLUSTER, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if b"Ray runtime started" in line:
                    break
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
