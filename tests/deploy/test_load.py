"""The load of the compose file's profile: every kind of request, each answered as it should be."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.load import main, run
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import fake_server


def test_every_request_is_answered(tmp_path: Path) -> None:
    with fake_server(write_fake_artifact(tmp_path)) as server:
        host, port = server.wait_until_ready().address
        found = run(f"{host}:{port}", rate=200, seconds=1)
    assert {"200", "422"} <= set(found) <= {"200", "422", "429"}
    assert found["200"] > found["422"]


def test_a_service_that_is_gone_ends_nothing() -> None:
    assert set(run("127.0.0.1:1", rate=100, seconds=0.1)) <= {"ConnectionRefusedError"}
    assert main(["--url", "http://127.0.0.1:1", "--seconds", "0.05"]) == 0


@pytest.mark.parametrize("flag", ["--url=localhost:8000", "--url=https://a", "--rate=0"])
def test_what_nothing_can_be_sent_to_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([flag, "--seconds", "0"])
    assert "expected --url http://HOST:PORT and a --rate above 0" in capsys.readouterr().err


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_it_says_what_it_saw_when_it_is_told_to_end(told: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        words = [sys.executable, "-m", "deploy.load", "--url", f"http://127.0.0.1:{service.getsockname()[1]}"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 - ours
        with process:
            service.accept()[0].close()  # it runs
            service.close()
            process.send_signal(told)
            try:
                said, complaints = process.communicate(timeout=30)
            finally:
                process.kill()
    assert (process.returncode, complaints) == (0, "")
    assert " x " in said
