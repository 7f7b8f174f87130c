"""The load of the compose file's profile: every kind of request, each answered as it should be."""

import random
from pathlib import Path

from deploy.load import main, make_request, run
from tests.deploy.tools import DEPLOY, read_yaml
from tests.service.fake_engine import write_fake_artifact
from tests.service.process import ServerProcess


def test_every_request_is_answered(tmp_path: Path) -> None:
    model = write_fake_artifact(tmp_path / "artifact")
    with ServerProcess("tests.service.fake_server", "--model", str(model)) as server:
        host, port = server.wait_until_ready().address
        found = run(f"{host}:{port}", rate=200, seconds=1, seed=0)
    assert {"200", "422"} <= set(found) <= {"200", "422", "429"}
    assert found["200"] > found["422"]


def test_there_are_requests_of_many_kinds() -> None:
    source = random.Random(0)  # noqa: S311 - no secret
    requests = [make_request(source) for _ in range(500)]
    assert {path for path, _ in requests} == {"/encode", "/v1/embeddings"}
    bodies = [body for _, body in requests]
    assert any("attention" in body for body in bodies)
    assert {len(body["inputs"]) for body in bodies if isinstance(body.get("inputs"), list)} == {0, 16}


def test_a_service_that_is_gone_ends_nothing() -> None:
    assert set(run("127.0.0.1:1", rate=100, seconds=0.1, seed=1)) <= {"ConnectionRefusedError"}
    assert main(["--url", "http://127.0.0.1:1", "--seconds", "0.05"]) == 0


def test_compose_runs_it_where_the_profile_asks_for_it() -> None:
    service = read_yaml(DEPLOY / "compose.yaml")["services"]["load"]
    assert service["profiles"] == ["load"]
    assert "./load.py:/load.py:ro" in service["volumes"]
    assert service["entrypoint"] == ["python", "/load.py", "--url", "http://polyhead:8000"]
