"""The real process on the real model: what it loads, what it writes, and its end under load."""

import http.client
import json
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from model.artifact import MANIFEST, identity, read_manifest
from polyhead.cli import main
from polyhead.models import cached_artifacts
from service.settings import Settings
from tests.service.process import ServerProcess, wait_until
from tests.service.routes.test_tables import write_table

CANARY = "xylophonist-4711"
TEXTS = ("a short one", "one that is a good deal longer than the short one, so that batches mix their lengths", "")


class Client:
    """Sends requests one after another, as long as a load balancer that watches `/readyz` would let it."""

    def __init__(self, server: ServerProcess, stop: threading.Event) -> None:
        self._server = server
        self._stop = stop
        self.statuses: list[int] = []
        self.failures: list[str] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(*self._server.address, timeout=30)
        body = json.dumps({"inputs": list(TEXTS)})
        try:
            while not self._stop.is_set():
                connection.request("POST", "/encode", body, {"content-type": "application/json"})
                response = connection.getresponse()
                answer = json.loads(response.read())
                self.statuses.append(response.status)
                if response.status != 200 or len(answer["embeddings"]) != len(TEXTS):
                    self.failures.append(json.dumps(answer)[:300])
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(repr(error))
        finally:
            connection.close()


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


@pytest.mark.parametrize("processes", ["1", "2"])
def test_end_in_the_middle_of_load_loses_nothing(engine_artifact: Path, processes: str) -> None:
    flags = ("--model", str(engine_artifact), "--drain-delay", "1", "--processes", processes)
    with ServerProcess("service", *flags).wait_until_ready() as server:
        stop = threading.Event()
        clients = [Client(server, stop) for _ in range(6)]
        wait_until(lambda: all(len(client.statuses) > 3 or client.failures for client in clients))
        server.signal(signal.SIGTERM)
        before = sum(len(client.statuses) for client in clients)
        while server.request("GET", "/readyz")[0] == 200:
            time.sleep(0.01)
        time.sleep(0.2)  # requests that were on their way still come, and are served
        stop.set()
        for client in clients:
            client.thread.join()
        assert server.wait() == 0
        assert [failure for client in clients for failure in client.failures] == []
        served = sum(len(client.statuses) for client in clients)
        assert before > 0
        assert served > before
        lines = [line for line in server.records() if line.get("route") == "/encode"]
        assert [line["status"] for line in lines] == [200] * served


def test_no_text_is_written_anywhere(default_artifact: Path) -> None:
    with ServerProcess(
        "service", "--model", str(default_artifact), "--log-level", "debug"
    ).wait_until_ready() as server:
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


def test_process_loads_neither_torch_nor_onnx(server: ServerProcess) -> None:
    assert server.request("POST", "/encode", {"inputs": "a text"})[0] == 200
    mapped = Path(f"/proc/{server.pid}/maps").read_text()
    assert "onnxruntime" in mapped
    assert "/torch/" not in mapped
    assert "/onnx/" not in mapped


def test_info_and_metrics_name_the_model(server: ServerProcess, default_artifact: Path) -> None:
    info = json.loads(server.request("GET", "/info")[2])
    assert info["manifest"] == json.loads((default_artifact / "manifest.json").read_text())
    page = server.request("GET", "/metrics")[2].decode()
    assert f'model="{info["model"]}"' in page
    assert f'identity="{identity(read_manifest(default_artifact))}"' in page
    assert f'weights_sha256="{info["manifest"]["source"]["sha256"]}"' in page


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_file_with_one_bit_changed_is_refused_by_its_name(default_artifact: Path, tmp_path: Path, name: str) -> None:
    for path in default_artifact.iterdir():
        if path.name == name:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            (tmp_path / name).write_bytes(content)
        else:
            shutil.copy(path, tmp_path)
    with ServerProcess("service", "--model", str(tmp_path)) as server:
        assert server.wait() == 1
        assert f"{tmp_path / name} has SHA-256" in server.lines[-1]
