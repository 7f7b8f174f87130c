"""A corpus through Ray on this machine: whole, ended and gone on with, and what is refused.

Ray is large and no part of `make test`: `.venv/bin/python -m pip install -e '.[bulk]'`, then these run.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="the extra bulk is not installed")
import pyarrow as pa
import pyarrow.parquet as pq

from deploy.bulk.encoder import TextEncoder
from tests.deploy.tools import ROOT
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


def command(model: Path, corpus: Path, output: Path, *more: str) -> list[str]:
    places = ["--model", str(model), "--input", str(corpus), "--output", str(output)]
    return [sys.executable, "-m", "deploy.bulk", *places, *more]


def encode(model: Path, corpus: Path, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own program
        command(model, corpus, output, *more), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


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
    assert done.returncode == 0, done.stderr
    assert f"{output} holds {FILES * ROWS} rows" in done.stdout
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
