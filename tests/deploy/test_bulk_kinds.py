"""What bulk encoding takes beside Parquet, what it shows on a terminal, and what a text that fails costs; with Ray."""

import json
import os
import pty
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tokenizers import Tokenizer

pytest.importorskip("ray", reason="the extra bulk is not installed")
import pyarrow as pa
import pyarrow.parquet as pq

from deploy.bulk.encoder import TextEncoder
from deploy.bulk.pipeline import Corpus, EncodeTexts
from deploy.bulk.progress import Counts, Summary
from model.artifact import GRAPH, TOKENIZER, describe_files, read_manifest, write_manifest
from service.errors import InferenceFailed
from service.inference.backend import Float32Array
from tests.deploy.bulk_command import CLUSTER, command, encode
from tests.deploy.tools import ROOT
from tests.task_artifacts import TaskArtifact

pytestmark = pytest.mark.slow


def test_json_lines_get_ids_and_a_terminal_one_line(tmp_path: Path, embedder: TaskArtifact, ray_address: str) -> None:
    texts = [f"text {row}" for row in range(500)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    places = embedder.artifact, tmp_path / "a.jsonl", tmp_path / "output"
    said, shown = on_a_terminal(*command(*places, "--address", ray_address))
    assert said.startswith(f"{tmp_path / 'output'} holds 500 rows; 500 texts encoded")
    drawn = [piece for piece in re.split(r"[\r\n]+", shown) if piece.strip()]
    assert {piece.split(":")[0] for piece in drawn} == {"encoding"}
    assert shown.count("\n") == 1  # the line is drawn over and over in its place
    assert drawn[-1].startswith("encoding: 100%")
    found = {row["id"]: row for row in pq.read_table(tmp_path / "output").to_pylist()}
    assert {name: row["text"] for name, row in found.items()} == {
        f"a.jsonl:{i + 1}": text for i, text in enumerate(texts)
    }
    vectors = np.array([found[f"a.jsonl:{i + 1}"]["embedding"] for i in range(len(texts))], dtype=np.float32)
    np.testing.assert_array_equal(vectors, TextEncoder.load(embedder.artifact).encode(texts))


def on_a_terminal(*arguments: str) -> tuple[str, str]:
    """What a command says, and what it shows on the terminal that is its standard error."""
    ours, its = pty.openpty()
    with subprocess.Popen(  # noqa: S603 - ours
        arguments, cwd=ROOT, env=CLUSTER, stdout=subprocess.PIPE, stderr=its, text=True
    ) as process:
        os.close(its)
        shown = b""
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
        except OSError:  # how Linux says that nobody has the terminal any more
            os.close(ours)
        assert process.stdout is not None
        said = process.stdout.read()
    assert process.returncode == 0, shown
    return said, shown.decode()


def test_csv_rows_that_fail_are_named_and_the_others_encoded(
    tmp_path: Path, embedder: TaskArtifact, ray_address: str
) -> None:
    artifact = broken_at("dog", embedder.artifact, tmp_path / "artifact")
    (tmp_path / "a.csv").write_text("id,text\nx,a cat\ny,the dog\nz,a mat\n")
    done = encode(artifact, tmp_path / "a.csv", tmp_path / "output", "--address", ray_address)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.rstrip().endswith("; 1 rows failed, the first: y")
    summary = json.loads((tmp_path / "output/_summary.json").read_text())
    assert (summary["rows"], summary["encoded"], summary["failed"], summary["failed_ids"]) == (3, 2, 1, ["y"])
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


class FailingEncoder:
    """Cannot encode the word `bad`, nor anything beside it."""

    dimensions = 2

    def encode(self, texts: Sequence[str]) -> Float32Array:
        if "bad" in texts:
            raise InferenceFailed()
        return np.array([[len(text), 1] for text in texts], dtype=np.float32)


def test_a_text_that_fails_costs_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextEncoder, "load", lambda *_, **__: FailingEncoder())
    reported: list[tuple[int, int, list[str]]] = []
    tally = SimpleNamespace(add=SimpleNamespace(remote=lambda *given: reported.append(given)))
    corpus = Corpus((), "", id_column="id", text_column="text")
    table = pa.table({"id": list("abcd"), "text": ["one", "bad", None, "three"]})
    found = EncodeTexts(corpus, "artifact", tally)(table)["embedding"].to_pylist()
    assert found == [[3, 1], None, None, [5, 1]]
    assert reported == [(4, 1, ["b"])]
    counts = Counts(rows=4, without_text=1, failed=1, failed_ids=["b"])
    assert str(Summary.of(counts, 4, time.monotonic() - 1)).endswith(
        "; 1 rows without text; 1 rows failed, the first: b"
    )
