"""The real process on the real model: what it loads, what it writes, and its end under load."""

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from model.artifact import MANIFEST, identity, read_manifest
from polyhead.cli import main
from polyhead.models import cached_artifacts
from service.settings import Settings
from tests.service.process import ROOT, ServerProcess, wait_until
from tests.service.routes.test_encode_tasks import write_table

CANARY = "xylophonist-4711"
TEXTS = ("a short one", "one that is a good deal longer than the short one, so that batches mix their lengths", "")

NO_BF16 = "this processor has no bf16"  # said of an artifact for OpenVINO, on some processors
BEGINNING = """
import signal, sys, threading, time
from polyhead import Engine

class Slow:
    def __del__(self):
        time.sleep(0.3)  # the interpreter is still ending when a run comes back that no one ended

slow = Slow()
engine = Engine.load(sys.argv[1])
texts = ["the cat sat on the mat and looked at the dog " * 30] * 400

def wait_for_runs():
    while not engine._runner.batcher.queued_texts:
        time.sleep(0.01)
    time.sleep(0.1)
"""
INTERRUPTED = """
def interrupt():
    wait_for_runs()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script's shell began in the background
threading.Thread(target=interrupt).start()
try:
    engine.encode(texts)
except KeyboardInterrupt:
    sys.exit(3)
"""
LEFT = """
threading.excepthook = print
threading.Thread(target=engine.encode, args=(texts,), daemon=True).start()
wait_for_runs()
sys.exit(3)
"""


def send_until(stop: threading.Event, server: ServerProcess, statuses: list[int], failures: list[str]) -> None:
    """Sends requests one after another, as long as a load balancer that watches `/readyz` would let a client."""
    body = json.dumps({"inputs": list(TEXTS)})
    with closing(http.client.HTTPConnection(*server.address, timeout=30)) as connection:
        try:
            while not stop.is_set():
                connection.request("POST", "/encode", body, {"content-type": "application/json"})
                response = connection.getresponse()
                answer = json.loads(response.read())
                statuses.append(response.status)
                if response.status != 200 or len(answer["embeddings"]) != len(TEXTS):
                    failures.append(json.dumps(answer)[:300])
        except (OSError, http.client.HTTPException) as error:
            failures.append(repr(error))


def test_a_checkpoint_is_exported_and_the_next_start_takes_it_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[Settings]
) -> None:
    monkeypatch.setenv("POLYHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("POLYHEAD_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = write_table(tmp_path / "table", "sentence-transformers")  # the quickest export there is
    assert main(["serve", str(folder), "--port", "0"]) == 0
    (artifact,) = cached_artifacts()
    assert starts[0].model == artifact
    assert artifact.parent == tmp_path / "cache"
    assert read_manifest(artifact).precision == "fp32"
    made = (artifact / MANIFEST).stat().st_mtime_ns
    assert main(["serve", "--port", "0", str(folder)]) == 0
    assert (cached_artifacts(), (artifact / MANIFEST).stat().st_mtime_ns) == ([artifact], made)


@pytest.mark.parametrize(
    ("engine_artifact", "processes"),
    [
        ("onnxruntime", "2"),
        ("openvino", "1"),
        pytest.param("onnxruntime", "1", marks=pytest.mark.exhaustive),
        pytest.param("openvino", "2", marks=pytest.mark.exhaustive),
    ],
    indirect=["engine_artifact"],
)
def test_end_in_the_middle_of_load_loses_nothing(engine_artifact: Path, processes: str) -> None:
    flags = ("--model", str(engine_artifact), "--drain-delay", "1", "--processes", processes)
    with ServerProcess("service", *flags).wait_until_ready() as server, ThreadPoolExecutor() as clients:
        stop = threading.Event()
        statuses: list[int] = []
        failures: list[str] = []
        for _ in range(6):
            clients.submit(send_until, stop, server, statuses, failures)
        wait_until(lambda: len(statuses) > 24 or bool(failures))
        server.signal(signal.SIGTERM)
        before = len(statuses)
        while server.request("GET", "/readyz")[0] == 200:
            time.sleep(0.01)
        time.sleep(0.2)  # requests that were on their way still come, and are served
        stop.set()
        clients.shutdown()
        assert server.wait() == 0
        assert failures == []
        assert len(statuses) > before > 0
        lines = [line for line in server.records() if line.get("route") == "/encode"]
        assert [line["status"] for line in lines] == [200] * len(statuses)


def test_no_text_is_written_anywhere(default_artifact: Path) -> None:
    with ServerProcess("service", "--model", str(default_artifact), "--log-level=debug").wait_until_ready() as server:
        bodies: list[Any] = [
            {"inputs": CANARY, "attention": {}},
            {"inputs": [CANARY * 1000, CANARY]},
            {"inputs": [CANARY, 7]},
            {"inputs": CANARY, "output": CANARY},
            {"inputs": CANARY, "truncate": CANARY},
        ]
        for body in bodies:
            server.request("POST", "/encode", body)
        server.request("POST", "/tokenize", {"inputs": CANARY})
        page = server.request("GET", "/metrics")[2]
        assert server.stop() == 0
        assert CANARY not in server.log
        assert CANARY.encode() not in page


def test_info_and_metrics_name_the_model(server: ServerProcess, default_artifact: Path) -> None:
    info = json.loads(server.request("GET", "/info")[2])
    assert info["manifest"] == json.loads((default_artifact / "manifest.json").read_text())
    page = server.request("GET", "/metrics")[2].decode()
    assert f'model="{info["model"]}"' in page
    assert f'identity="{identity(read_manifest(default_artifact))}"' in page
    assert f'weights_sha256="{info["manifest"]["source"]["sha256"]}"' in page


@pytest.mark.parametrize("ending", [INTERRUPTED, LEFT], ids=["interrupted", "left"])
def test_a_program_that_ends_during_a_run_ends_as_it_means_to(engine_artifact: Path, ending: str) -> None:
    """Without closing the engine: its exit code is its own, not SIGABRT's."""
    command = [sys.executable, "-W", "error", "-c", BEGINNING + ending, str(engine_artifact)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own program
    said = [line for line in ended.stderr.splitlines() if not line.startswith(NO_BF16)]
    assert (ended.returncode, said) == (3, [])
