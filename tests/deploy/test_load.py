"""The load of the compose file's profile: every kind of request, each answered as it should be."""

from pathlib import Path

from deploy.load import main, run
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import ServerProcess


def test_every_request_is_answered(tmp_path: Path) -> None:
    model = write_fake_artifact(tmp_path / "artifact")
    with ServerProcess("tests.service.fake_server", "--model", str(model)) as server:
        host, port = server.wait_until_ready().address
        found = run(f"{host}:{port}", rate=200, seconds=1, seed=0)
    assert {"200", "422"} <= set(found) <= {"200", "422", "429"}
    assert found["200"] > found["422"]


def test_a_service_that_is_gone_ends_nothing() -> None:
    assert set(run("127.0.0.1:1", rate=100, seconds=0.1, seed=1)) <= {"ConnectionRefusedError"}
    assert main(["--url", "http://127.0.0.1:1", "--seconds", "0.05"]) == 0
