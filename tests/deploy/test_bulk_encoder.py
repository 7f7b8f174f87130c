"""Bulk encoding without Ray: the service's vectors to the bit, texts in their order."""

import base64
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from deploy.bulk.encoder import TextEncoder, check_choices
from model.artifact import Manifest
from service.errors import InferenceFailed, ServiceError
from tests.deploy.tools import ROOT
from tests.service.fake_engine import HIDDEN_SIZE, make_manifest, write_fake_artifact
from tests.service.process import ServerProcess
from tests.texts import varied_texts


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
