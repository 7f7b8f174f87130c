"""The init container's script against a real HTTP server: what it takes, and what it refuses by its name."""

import functools
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.kubernetes.components.volume.fetch_model import BESIDE_MODEL, FetchError, fetch, main
from hatch_build import moved
from model.artifact import MANIFEST, hash_file, read_manifest
from service.settings import Settings
from tests.deploy.tools import DEPLOY, ROOT, most_memory, serving
from tests.service.fake_engine import write_fake_artifact

SCRIPT = DEPLOY / "kubernetes/components/volume/fetch_model.py"
DEFAULT_MODEL_BYTES = 91e6  # of all-MiniLM-L6-v2 in fp32


class Handler(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the name of the overridden one


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A directory with an artifact in it."""
    directory = tmp_path / "store" / "fake"
    write_fake_artifact(directory)
    return directory


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def url(store: Path, asked: list[str]) -> Iterator[str]:
    handler = functools.partial(type("Asked", (Handler,), {"asked": asked}), directory=str(store.parent))
    with serving(handler) as port:
        yield f"http://127.0.0.1:{port}/fake/"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume"


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_fetches_the_whole_artifact(url: str, store: Path, volume: Path) -> None:
    assert fetch(url, hash_file(store / MANIFEST), volume).manifest.model == "tests/fake"
    copied, stored = ({name: hash_file(at / name) for name in names(at)} for at in (volume, store))
    assert copied == stored


def test_goes_on_where_it_was_ended(url: str, store: Path, volume: Path, asked: list[str]) -> None:
    for graph in ("explain.onnx", "model.onnx"):
        shutil.copy(store / graph, volume)
    (volume / ".tokenizer.json.partial").write_bytes(b"half of")
    fetch(url, hash_file(store / MANIFEST), volume)
    assert asked == ["/fake/manifest.json", "/fake/tokenizer.json"]
    assert names(volume) == names(store)


def test_a_model_too_large_for_the_memory_is_refused_before_it_is_fetched(
    url: str, store: Path, volume: Path, asked: list[str]
) -> None:
    size = sum(entry.size for entry in read_manifest(store).files.values())
    with pytest.raises(FetchError, match=r"may have 512 MiB of memory: set requests.memory and .* to 769Mi"):
        fetch(url, hash_file(store / MANIFEST), volume, memory_limit=512 * 2**20)
    assert asked == ["/fake/manifest.json"]
    fetch(url, hash_file(store / MANIFEST), volume, memory_limit=BESIDE_MODEL + size)


def test_memory_beside_the_model_is_what_the_service_holds() -> None:
    assert most_memory(Settings.model_construct()) - DEFAULT_MODEL_BYTES < BESIDE_MODEL


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def name_a_file_outside(path: Path) -> None:
    manifest = json.loads(path.read_text())
    manifest["files"]["../outside"] = manifest["files"]["tokenizer.json"]
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.onnx", flip_a_bit, "model.onnx has SHA-256"),
        ("tokenizer.json", flip_a_bit, "tokenizer.json has SHA-256"),
        ("tokenizer.json", lambda path: path.write_bytes(path.read_bytes() + b" "), r"holds more than \d+ bytes"),
        (MANIFEST, name_a_file_outside, "only plain file names"),
    ],
)
def test_refuses_what_is_not_as_the_hashes_say(
    url: str, store: Path, volume: Path, name: str, change: Callable[[Path], object], message: str
) -> None:
    change(store / name)
    with pytest.raises(FetchError, match=message):
        fetch(url, hash_file(store / MANIFEST), volume)
    assert not {name, MANIFEST} & names(volume)
    assert not (volume.parent / "outside").exists()


def test_refuses_another_manifest(url: str, store: Path, volume: Path) -> None:
    with pytest.raises(FetchError, match=f"manifest.json has SHA-256 {hash_file(store / MANIFEST)}, expected 0000"):
        fetch(url, "0" * 64, volume)
    assert not (volume / MANIFEST).exists()


def refused(url: str, volume: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that says why nothing was fetched."""
    assert main(["--url", url, "--sha256", "0" * 64, str(volume)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fetch_model: {url}")
    return line


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "BadStatusLine('SSH-2.0-OpenSSH_9"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\nhalf", "IncompleteRead("),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "has SHA-256"),
    ],
)
def test_says_in_one_line_what_it_cannot_read(
    answer: bytes, message: str, volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send_answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=send_answer)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/tiny"
        line = refused(url, volume, capsys)
        thread.join()
    assert line.startswith(f"fetch_model: {url}/manifest.json ")
    assert message in line


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc", "expected an http or https address"),
        ("example.com", "expected an http or https address"),
        ("http://[::1/model", "cannot be fetched: ValueError("),
        ("http://a b/tiny", "cannot be fetched: InvalidURL("),
        ("http://example.com:port/tiny", "cannot be fetched: InvalidURL("),
        ("http://127.0.0.1:1/tiny", "manifest.json cannot be fetched: URLError("),
    ],
)
def test_says_in_one_line_what_is_no_address(
    url: str, message: str, volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(url, volume, capsys)


def test_runs_as_the_init_container_runs_it(url: str, store: Path, volume: Path, tmp_path: Path) -> None:
    """On what an image has installed, where every package is below `polyhead`, and on nothing else."""
    for path in (*(ROOT / "model").rglob("*.py"), ROOT / "polyhead/__init__.py"):
        place = tmp_path / "installed/polyhead" / str(path.relative_to(ROOT)).removeprefix("polyhead/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(moved(path.read_text()))
    script = shutil.copy(SCRIPT, tmp_path)
    flags = ["--url", url, "--sha256", hash_file(store / MANIFEST), str(volume)]
    done = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-S", script, *flags],
        env={"PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "tests/fake, fp32: verified"


def test_sigterm_ends_a_fetch_that_hangs(volume: Path) -> None:
    ignoring = ["sh", "-c", 'trap "" TERM; exec "$@"', "sh"]  # as the first process of a container does
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [*ignoring, sys.executable, str(SCRIPT), "--url", url, "--sha256", "0" * 64, str(volume)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, cwd=ROOT, env=environment) as process:  # noqa: S603 - our own
            connection, _ = silent.accept()
            process.terminate()
            assert process.wait(20) == 128 + signal.SIGTERM
        connection.close()
