"""`polyhead serve MODEL`: what is no artifact is fetched and exported once, into a cache, and served from there."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from export.cli import parser as export_parser
from export.errors import SourceError
from export.sources import Folder
from model.artifact import ArtifactError
from model.processor import processor_name
from polyhead import models
from polyhead.cli import main
from polyhead.models import DEFAULT_ARTIFACT, Tuned, Wanted, cached_artifacts, default_artifact, exported, keep_tuned
from service.machine import usable_cores
from service.settings import Settings, misspelt_variables
from tests.command import Run
from tests.hub import COMMIT, MODEL, Hub, serve_hub
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import ServerProcess
from tests.task_artifacts import TaskArtifact

ROOT = Path(__file__).parents[2]
Asked = list[tuple[str | None, str | None]]  # models and revisions


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLYHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("POLYHEAD_MODEL", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The targets of all exports, which write an artifact that is none of the network's."""
    seen: list[Path] = []

    def export(_: Wanted, __: Folder, target: Path) -> None:
        seen.append(target)
        time.sleep(0.05)
        write_fake_artifact(target)

    monkeypatch.setattr(models, "_export", export)
    return seen


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    """What the hub is asked for; it has one commit of every model."""
    seen: Asked = []

    def find(model: str | None, revision: str | None = None, *, allows_pickles: bool = False) -> Folder:
        del allows_pickles
        seen.append((model, revision))
        if os.environ.get("HF_HUB_OFFLINE"):
            raise SourceError(f"{model} could not be fetched")
        return Folder(tmp_path, str(model), revision=COMMIT)

    monkeypatch.setattr(models, "find_folder", find)
    return seen


def test_an_artifact_is_served_as_it_is(
    embedder: TaskArtifact, starts: list[Settings], exports: list[Path], run: Run
) -> None:
    run("serve", "--model", embedder.artifact)
    assert (starts[0].model, exports) == (embedder.artifact, [])
    said = "is an artifact: how it was exported cannot be chosen any more"
    assert said in run("serve", embedder.artifact, "--precision", "int8", code=1)
    Path("empty").mkdir()
    said = "holds neither an artifact (manifest.json) nor a checkpoint (config.json)"
    assert said in run("serve", "empty", code=1)
    with pytest.raises(ArtifactError, match="this name is not UTF-8: rename the folder"):
        models.is_artifact(Path("\udcff"))


def test_several_models_keep_their_names_and_only_those_without_an_artifact_are_exported(
    embedder: TaskArtifact, starts: list[Settings], exports: list[Path], asked: Asked
) -> None:
    models = ["owner/name", f"mine={embedder.artifact}", "other=owner/other"]
    assert main(["serve", *models, "--default", "mine", "--precision", "int8"]) == 0
    assert [path.name.rpartition("-")[0] for path in exports] == ["name-int8", "other-int8"]
    first, other = exports
    assert starts[0].named_models == [("", first), ("mine", embedder.artifact), ("other", other)]
    assert starts[0].default == "mine"


def test_a_hub_model_is_asked_for_once_a_setting(starts: list[Settings], exports: list[Path], asked: Asked) -> None:
    for _ in range(2):
        assert main(["serve", "owner/model"]) == 0
    assert (len(exports), asked) == (1, [("owner/model", None)])
    assert main(["serve", "owner/model", "--precision", "int8", "--max-length", "64"]) == 0
    assert asked[1:] == [("owner/model", COMMIT)]  # the commit that the first start found
    assert len(set(exports)) == 2
    assert main(["serve", "owner/model", "--revision", COMMIT]) == 0
    assert len(asked) == 2
    assert main(["serve", "owner/model", "--engine", "openvino"]) == 0
    assert len(set(exports)) == 3


def test_what_tune_chose_is_served_unless_something_else_is_asked_for(
    starts: list[Settings], exports: list[Path], asked: Asked, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    keep_tuned(Path("owner/model"), Tuned(processor_name(), usable_cores(), "bf16", "openvino", 1, 1, 2))
    run("serve", "owner/model")
    assert exports[0].name.startswith("model-bf16-")
    assert (starts[0].processes, starts[0].workers, starts[0].intra_op_threads) == (1, 1, 2)
    assert "as `polyhead tune` found best here" in run.said
    assert main(["serve", "owner/model", "--precision", "bf16", "--engine", "openvino", "--workers", "3"]) == 0
    assert len(exports) == 1, "the same artifact"
    assert (starts[1].workers, starts[1].intra_op_threads) == (3, 1)
    assert main(["serve", "owner/model", "--precision", "int8"]) == 0
    assert exports[1].name.startswith("model-int8-")
    monkeypatch.setenv("POLYHEAD_WORKERS", "1")
    assert main(["serve", "owner/other"]) == 0
    assert main(["serve", "owner/model", "owner/other"]) == 0
    assert [settings.intra_op_threads for settings in starts[3:]] == [1, 1]


def test_settings_of_an_export_are_the_exporters(
    embedder: TaskArtifact, starts: list[Settings], cache: Path, run: Run
) -> None:
    flags = ["--precision", "bf16", "--engine", "openvino", "--task", "embedding", "--max-length", "16"]
    with patch("polyhead.models.subprocess.Popen", side_effect=KeyboardInterrupt) as start:
        run("serve", embedder.folder, *flags, code=130)
    command = start.call_args.args[0]
    given = export_parser().parse_args(command[command.index("export") + 1 :])
    assert (given.precision, given.engine, given.task, given.max_length) == ("bf16", "openvino", "embedding", 16)
    assert Path(given.output).parent == cache


def test_offline_asks_for_nothing(
    starts: list[Settings], exports: list[Path], asked: Asked, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # restored after the test
    said = run("serve", "owner/model", "--offline", code=1)
    assert said.startswith("polyhead serve: owner/model could not be fetched")
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    assert main(["serve", "owner/model"]) == 0
    assert main(["serve", "owner/model", "--offline"]) == 0
    assert len(starts) == 2


def test_a_cache_that_cannot_be_written_to_is_said_with_the_variable_that_moves_it(
    cache: Path, exports: list[Path], asked: Asked, run: Run
) -> None:
    cache.touch()  # a file in its place
    printed = run("serve", "owner/model", code=1)
    expected = f"polyhead serve: exports are kept in {cache}, which cannot be written to (File exists): name another "
    assert printed.startswith(f"{expected}folder with POLYHEAD_CACHE")
    assert (exports, printed.count("\n")) == ([], 1)


def test_a_user_without_a_home_needs_a_named_cache_for_exports_alone(
    cache: Path, embedder: TaskArtifact, starts: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    assert models.cache_folder() == cache
    cache.symlink_to(cache)  # a folder that cannot be looked into
    assert main(["serve", "--model", str(embedder.artifact)]) == 0
    monkeypatch.delenv("POLYHEAD_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert main(["serve", "--model", str(embedder.artifact)]) == 0
    assert [one.model for one in starts] == [embedder.artifact] * 2
    assert (default_artifact(), main(["heads", "--help"])) == (DEFAULT_ARTIFACT, 0)
    with pytest.raises(ArtifactError, match="no home folder .* POLYHEAD_CACHE"):
        models.cache_folder()


def test_two_starts_share_one_export(exports: list[Path], asked: Asked) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(exported, [Wanted("owner/model")] * 2))
    assert len(exports) == 1
    assert found == exports * 2


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("kill -9 $$", "the exporter was killed, which happens where memory is short"),
        ("exit 1", "was not exported: its last line says why"),
    ],
)
def test_an_export_that_fails_leaves_nothing(
    embedder: TaskArtifact, starts: list[Settings], cache: Path, end: str, message: str, run: Run
) -> None:
    started = subprocess.Popen
    with patch("polyhead.models.subprocess.Popen", lambda _, **options: started(["sh", "-c", end], **options)):
        assert message in run("serve", embedder.folder, code=1)
    assert (cached_artifacts(), starts) == ([], [])
    assert {path.suffix for path in cache.iterdir()} == {".lock"}


def test_an_interrupted_export_has_ended_before_the_command_has(
    embedder: TaskArtifact, cache: Path, run: Run, tmp_path: Path
) -> None:
    listens = tmp_path / "listens"
    slow_end = ["sh", "-c", f"trap 'sleep 1; exit' TERM; touch {listens}; while :; do sleep 0.1; done"]
    processes: list[subprocess.Popen[bytes]] = []

    class Export(subprocess.Popen[bytes]):
        was_waited_for = False

        def __init__(self, _: list[str], **options: Any) -> None:
            super().__init__(slow_end, **options)
            processes.append(self)

        def wait(self, timeout: float | None = None) -> int:
            while not listens.exists():
                time.sleep(0.01)
            if not self.was_waited_for:  # Ctrl-C comes then
                self.was_waited_for = True
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            return super().wait(timeout)

    with patch("polyhead.models.subprocess.Popen", Export):
        run("serve", embedder.folder, code=130)
    assert [process.returncode for process in processes] == [0]


def test_the_cache_is_listed_and_cleared(starts: list[Settings], exports: list[Path], asked: Asked, run: Run) -> None:
    for name in ("one", "other"):
        run("serve", f"owner/{name}")
    one, other = exports
    assert [line.split()[-1] for line in run("cache").splitlines()] == [one.name, other.name]
    run("cache", "clear", one.name)
    assert cached_artifacts() == [other]
    assert "holds no nothing: `polyhead cache` lists what it holds" in run("cache", "clear", "nothing", code=1)
    run("cache", "clear")
    assert cached_artifacts() == []


def test_commands_find_what_a_server_exported(exports: list[Path], starts: list[Settings]) -> None:
    assert misspelt_variables(["POLYHEAD_CACHE"]) == []
    assert default_artifact() == DEFAULT_ARTIFACT
    assert main(["serve", "--port", "0"]) == 0
    assert [default_artifact()] == exports == [settings.model for settings in starts]


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
