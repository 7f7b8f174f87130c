"""A model's name typed once, against a server that speaks the hub's protocol."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.hub import COMMIT, MODEL, Hub, serve_hub
from tests.service.process import ServerProcess
from tests.task_artifacts import TaskArtifact

FETCH = """
import json, sys
from export.errors import SourceError
from export.sources import find_folder
for model in sys.argv[1:]:
    try:
        found = find_folder(model)
        print(json.dumps([found.revision, sorted(path.name for path in found.path.iterdir())]))
    except SourceError as error:
        print(json.dumps([None, str(error)]))
"""


@pytest.fixture
def hub(embedder: TaskArtifact) -> Iterator[Hub]:
    with serve_hub(embedder.folder) as hub:
        yield hub


def fetch(hub: Hub, cache: Path, *models: str, **variables: str) -> list[list[Any]]:
    """Of each model the commit and the names of its files, or None and what was wrong; of a new process."""
    environment = {**os.environ, **hub.environment(cache), **variables}
    command = [sys.executable, "-c", FETCH, *models]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_download_that_breaks_off_leaves_nothing_that_is_taken_for_the_model(hub: Hub, tmp_path: Path) -> None:
    hub.breaks_off = "model.safetensors"
    whole = [COMMIT, sorted({path.name for path in hub.folder.iterdir()})]
    broken, again, other = fetch(hub, tmp_path, MODEL, MODEL, "drawn/other")
    assert broken == whole or "could not be fetched (" in broken[1]  # as the library tries again or not
    assert again == whole
    assert other == [None, "drawn/other is neither a folder here nor a model on the hub that can be read"]
    (fetched,) = (tmp_path / "hub").rglob("model.safetensors")
    assert fetched.read_bytes() == (hub.folder / "model.safetensors").read_bytes()
    hub.asked.clear()
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        assert fetch(hub, tmp_path, MODEL, **{variable: "1"}) == [whole]
    assert hub.asked == []


def test_without_a_network_an_earlier_download_is_taken_and_another_refused_at_once(hub: Hub, tmp_path: Path) -> None:
    (downloaded,) = fetch(hub, tmp_path, MODEL)
    began = time.monotonic()
    found, other = fetch(hub, tmp_path, MODEL, "owner/name", HF_ENDPOINT="http://127.0.0.1:1")
    assert time.monotonic() - began < 15  # with the library's five retries it would be 23 s and more
    assert found == downloaded
    assert other[1].startswith("owner/name could not be fetched (ConnectError), and no folder has this name")


@contextmanager
def served(hub: Hub, cache: Path, *flags: str) -> Iterator[tuple[ServerProcess, float]]:
    """`polyhead serve MODEL`, once it is ready, and after how many seconds that was."""
    began, environment = time.monotonic(), hub.environment(cache)
    with ServerProcess("polyhead", "serve", MODEL, "--workers=1", *flags, environment=environment) as process:
        with patch("tests.service.process.START_LIMIT", 300.0):
            process.wait_until_ready()
        yield process, time.monotonic() - began
        assert process.stop() == 0


@pytest.mark.slow
def test_the_name_is_served_and_the_next_start_asks_nobody(hub: Hub, tmp_path: Path) -> None:
    with served(hub, tmp_path) as (process, cold):
        first = process.post("/encode", {"inputs": "the cat sat"})
        assert first["model"] == MODEL
        assert json.loads(process.request("GET", "/info")[2])["manifest"]["source"]["revision"] == COMMIT
    assert hub.asked
    hub.asked.clear()
    for flags in ((), ("--offline",)):
        with served(hub, tmp_path, *flags) as (process, warm):
            assert process.post("/encode", {"inputs": "the cat sat"})["embeddings"] == first["embeddings"]
            assert warm < cold
    assert hub.asked == []
