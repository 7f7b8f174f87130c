"""A corpus through Ray: whole, edited and broken, a run that is ended, a node that dies, and refusals.

Ray is large and no part of `make test`: `make bulk-check` installs it into an environment of its own and runs these.
A run takes seconds to begin, so each of the few runs here shows all that it can.
"""

import errno
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tokenizers import Tokenizer

pytest.importorskip("ray", reason="the extra bulk is not installed")
import pyarrow as pa
import pyarrow.parquet as pq

from deploy.bulk import show
from deploy.bulk.__main__ import main
from deploy.bulk.corpus import Columns, Source, find_sources
from deploy.bulk.encoder import TextEncoder
from deploy.bulk.output import AnotherRun, Output
from deploy.bulk.pipeline import EncodeShards, Shard, make_shards
from deploy.bulk.show import Cluster
from model.artifact import GRAPH, TOKENIZER, describe_files, identity, read_manifest, write_manifest
from tests.deploy.tools import DEPLOY, ROOT
from tests.service.process import wait_until
from tests.task_artifacts import TaskArtifact

pytestmark = pytest.mark.slow

FILES, ROWS = 4, 100
FAILS = "1-7"  # the id of the row whose text the network fails at
Rows = list[dict[str, Any]]


class Run(NamedTuple):
    returncode: int
    said: str
    shown: str
    corpus: Rows
    rows: Rows
    summary: dict[str, Any]


class Story(NamedTuple):
    folder: Path
    first: Run
    edited: Run
    broken: Run


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One for all tests: its start takes longer than most of them."""
    with Cluster(cores=2) as started:
        yield started


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, embedder: TaskArtifact, cluster: Cluster) -> Story:
    """One corpus and one output: a first run, one after edits, and one with a file that breaks off.

    The network's vector of one text is no number. Otherwise it is the embedder.
    """
    folder = tmp_path_factory.mktemp("bulk")
    artifact = broken_at("dog", embedder.artifact, folder / "artifact")
    corpus, output = folder / "corpus", folder / "output"
    corpus.mkdir()
    files = [[{"id": f"{n}-{m}", "text": f"text {m} of {n}", "extra": m} for m in range(ROWS)] for n in range(FILES)]
    for rows in files:
        rows[3]["text"] = None
    files[1][7]["text"] = "the dog"

    def run() -> Run:
        for number, rows in enumerate(files):
            (corpus / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = command(artifact, corpus, output, "--address", cluster.address)
        returncode, said, shown = on_a_terminal(*words)
        found = pq.read_table(output).to_pylist()
        summary = json.loads((output / "_summary.json").read_text())
        return Run(returncode, said, shown, [dict(row) for rows in files for row in rows], found, summary)

    first = run()
    files[0].insert(0, {"id": "inserted", "text": "a new first row", "extra": -1})
    files[0][50]["text"] = "another text"
    files.append([{"id": "new", "text": "a text of a new file", "extra": 0}])
    edited = run()
    (corpus / "breaks-off.jsonl").write_text('{"id": "b", "text": "b", "extra": 0}\n{')
    return Story(folder, first, edited, broken=run())


def command(model: Path, corpus: Path, output: Path, *more: str) -> list[str]:
    places = ["--model", str(model), "--input", str(corpus), "--output", str(output)]
    return [sys.executable, "-m", "deploy.bulk", *places, *more]


def on_a_terminal(*arguments: str) -> tuple[int, str, str]:
    """A command's exit code, what it says, and what it shows on the terminal that is its standard error."""
    ours, its = pty.openpty()
    with subprocess.Popen(  # noqa: S603 - ours
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=its, text=True
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
    return process.returncode, said, shown.decode()


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


def check(found: Sequence[dict[str, Any]], corpus: Sequence[dict[str, Any]], model: Path, fails: str = "") -> None:
    """Every row once, as it was, with its vector; rows without text and the one that fails have none."""
    vectors = {row["id"]: row["embedding"] for row in found}
    rows = [{name: row[name] for name in row if name != "embedding"} for row in found]
    assert sorted(rows, key=lambda row: row["id"]) == sorted(corpus, key=lambda row: row["id"])
    texts = {row["id"]: row["text"] for row in corpus if row["text"] is not None and row["id"] != fails}
    assert {name for name, vector in vectors.items() if vector is not None} == set(texts)
    expected = TextEncoder.load(model).encode(list(texts.values()))
    np.testing.assert_array_equal(np.array([vectors[name] for name in texts], dtype=np.float32), expected)


def test_every_row_gets_its_vector_what_fails_is_named_and_a_terminal_shows_one_line(
    story: Story, embedder: TaskArtifact
) -> None:
    run, output = story.first, story.folder / "output"
    check(run.rows, run.corpus, embedder.artifact, FAILS)
    assert re.fullmatch(
        rf"{output} holds 400 rows; 395 texts encoded in [\d.]+ s \([\d.]+ texts/s\); 4 rows without text; "
        rf"1 rows failed, the first: {FAILS}\n",
        run.said,
    )
    names = ("rows", "encoded", "without_text", "failed", "failed_ids")
    assert [run.summary[name] for name in names] == [400, 395, 4, 1, [FAILS]]
    assert run.returncode == 1
    assert pa.types.is_fixed_size_list(pq.read_table(output).schema.field("embedding").type)
    parts = [part for part in re.split(r"[\r\n]+", run.shown) if part.strip()]
    assert {part.split(":")[0] for part in parts} == {"encoding"}
    assert run.shown.count("\n") == 1  # the line is drawn over and over in its place
    assert parts[-1].startswith("encoding: 100%")


def test_the_documented_query_finds_the_nearest_text(
    story: Story, embedder: TaskArtifact, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(import duckdb.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    given = {"'vectors/": f"'{story.folder}/output/", "artifacts/int8": str(embedder.artifact), "384": "32"}
    for documented, ours in {**given, "what to look for": "text 5 of 2"}.items():
        assert documented in code
        code = code.replace(documented, ours)
    exec(code, {})  # noqa: S102 - our own documentation
    rows = [line for line in capsys.readouterr().out.splitlines() if " of " in line]
    score, text = rows[0].strip("│").split("│")
    assert text.strip() == "text 5 of 2"
    assert float(score) == pytest.approx(1, abs=1e-5)


def test_a_later_run_encodes_what_is_new_or_edited_and_what_failed(story: Story, embedder: TaskArtifact) -> None:
    run = story.edited
    check(run.rows, run.corpus, embedder.artifact, FAILS)
    assert "holds 402 rows; 101 texts encoded" in run.said  # the edited file's hundred, and the new file's one
    assert run.said.endswith(f"; 100 rows removed that their files no longer have; 1 rows failed, the first: {FAILS}\n")
    assert (run.summary["failed_ids"], run.returncode) == ([FAILS], 1)


def test_a_file_that_breaks_off_in_its_middle_is_named(story: Story) -> None:
    said = rf"python -m deploy\.bulk: file://{story.folder}/corpus/breaks-off\.jsonl cannot be read as JSON lines: .*"
    assert (story.broken.returncode, story.broken.said) == (1, "")
    last = re.split(r"[\r\n]+", story.broken.shown.rstrip())[-1]
    assert re.fullmatch(said, last), story.broken.shown
    assert story.broken.rows == story.edited.rows


def begin(model: Path, corpus: Path, output: Path, address: str, files: int) -> subprocess.Popen[str]:
    """The command, at the moment when the output has this many files."""
    words, pipe = command(model, corpus, output, "--address", address), subprocess.PIPE
    process = subprocess.Popen(words, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)  # noqa: S603 - ours
    while len(list(output.glob("*.parquet"))) < files and process.poll() is None:
        time.sleep(0.01)
    return process


def test_a_killed_run_is_gone_on_with_and_outlives_its_node_with_one_core_left(
    tmp_path: Path, embedder: TaskArtifact, cluster: Cluster
) -> None:
    """All that reads and encodes is on the node that dies; of sixteen files others are not done when the first is."""
    corpus, output = tmp_path / "corpus", tmp_path / "output"
    corpus.mkdir()
    for number in range(16):
        columns = {name: [f"{name} {row} of file {number}" for row in range(550)] for name in ("id", "text")}
        pq.write_table(pa.table(columns), corpus / f"{number}.parquet")
    with begin(embedder.artifact, corpus, output, cluster.address, files=1) as process:
        with pytest.raises(AnotherRun, match=f"written by process {process.pid} on "), Output(output.as_uri()).locked():
            pass
        assert list(show.actor_pids())
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not list(show.actor_pids()))  # they may write one more file each
    done = [pq.read_metadata(file).num_rows for file in output.glob("*.parquet")]
    with begin(embedder.artifact, corpus, output, cluster.address, files=len(done) + 1) as process:
        cluster.replace_node(cores=1)
        said, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    assert said.startswith(f"{output} holds 8800 rows; ")
    assert int(said.split()[4]) <= 8800 - sum(done)  # what the killed run finished is not encoded again
    check(pq.read_table(output).to_pylist(), pq.read_table(corpus).to_pylist(), embedder.artifact)


def test_a_shard_is_done_when_the_tally_has_its_figures_or_says_why_it_cannot_be_written(
    tmp_path: Path, embedder: TaskArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command reads the tally when all shards are done; a report that is on its way then would be lost."""
    waited: list[str] = []
    encoded: list[int] = []

    def add(name: str, counts: Counter[str], failed_ids: list[Any]) -> str:
        assert failed_ids == []
        encoded.append(counts["encoded"])
        return f"receipt of {name}"

    monkeypatch.setattr("deploy.bulk.pipeline.ray.get", waited.extend)
    (tmp_path / "a.txt").write_text("a text\nanother\n")
    (source,) = find_sources([(tmp_path / "a.txt").as_uri()])
    tally = SimpleNamespace(add=SimpleNamespace(remote=add))
    output = (tmp_path / "output").as_uri()
    encode = EncodeShards(TextEncoder.load, str(embedder.artifact), output, Columns(), tally)
    (name,) = encode({"shard": [Shard(source, 0, 1)]})["name"]
    assert waited == [f"receipt of {name}"]
    monkeypatch.setattr(Output, "write", Mock(side_effect=OSError(errno.ENOSPC, "no space is left")))
    assert encode({"shard": [Shard(source, 0, 1)]})["name"] == [name]  # done, and not written again
    assert encoded == [2, 0]
    (tmp_path / f"output/{name}.parquet").unlink()
    wrong = f"cannot encode {source.uri} into {output}: [Errno 28] no space is left"
    assert encode({"shard": [Shard(source, 0, 1)]}) == {"name": [""], "wrong": [wrong]}


@pytest.mark.parametrize(
    ("megabytes", "shards"), [([15], [8]), ([3], [3]), ([0.1, 0.1], [1, 1]), ([5] * 20, [1] * 20), ([90, 10], [7, 1])]
)
def test_a_file_is_shared_by_actors_if_there_are_too_few_files(megabytes: list[float], shards: list[int]) -> None:
    sources = [Source("", str(number), "text", int(size * 2**20)) for number, size in enumerate(megabytes)]
    found = make_shards(sources, workers=2)
    assert [sum(shard.source == source for shard in found) for source in sources] == shards
    for source, of in zip(sources, shards, strict=True):
        assert sorted(one.number for one in found if one.source == source) == [*range(of)]


def test_the_show_finds_rows_that_are_missing_doubled_or_wrong(tmp_path: Path) -> None:
    encoder = show.NoNetwork.load(tmp_path, dimensions=None)
    whole, _ = encoder.add_vectors(pa.table({"id": [0, 1, 1, 3], "text": ["a", "b", "b", "c"]}), "text")
    rows = whole.set_column(1, "text", pa.array(["a", "b", "b", "of another row"]))
    pq.write_table(rows, tmp_path / "a.parquet")
    assert show.check(tmp_path, 4, encoder, every=1) == {"missing": 1, "doubled": 1, "wrong": 1}


def test_says_what_is_wrong_before_ray_starts(
    tmp_path: Path, embedder: TaskArtifact, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, output = tmp_path / "a.jsonl", tmp_path / "output"
    corpus.write_text('{"id": "a", "text": "b", "extra": 0}\n')
    manifest = read_manifest(embedder.artifact)
    made_by = {"model": manifest.model, "identity": identity(manifest), "precision": manifest.precision}
    choices = {"prompt_name": None, "dimensions": None, "normalize": True, "text_column": "text", "id_column": "id"}
    Output(output.as_uri()).claim({**made_by, **choices})
    for more, message in {
        ("--text-column", "body"): "no column body; it has id, text, extra",
        ("--text-column", "extra"): "column extra holds int64, not texts",
        ("--prompt-name", "query"): "no named prompts",
        ("--dimensions", "99999"): "dimensions: expected 1 to ",
        ("--dimensions", "10"): "was begun with dimensions None; name another --output",
    }.items():
        assert main(command(embedder.artifact, corpus, output, *more)[3:]) == 1
        assert message in capsys.readouterr().err
    assert main(command(embedder.artifact, tmp_path / "gone", output, "--input", str(corpus))[3:]) == 1
    assert "gone is not there" in capsys.readouterr().err  # of two --input both count


def test_on_a_machine_that_is_a_node_already_ray_leaves_nothing_behind(
    tmp_path: Path, embedder: TaskArtifact, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.address
    (tmp_path / "a.txt").write_text("a text\nanother\n")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        before = sorted(os.listdir("/tmp/ray"))  # noqa: S108 - Ray's own
        words = command(embedder.artifact, tmp_path / "a.txt", tmp_path / "output", "--dimensions", "2")
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - ours
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(os.listdir("/tmp/ray")) == before  # noqa: S108 - likewise
        assert os.listdir(folder) == []
    assert [len(vector) for vector in pq.read_table(tmp_path / "output")["embedding"].to_pylist()] == [2, 2]
