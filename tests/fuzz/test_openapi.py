"""Schemathesis over the OpenAPI document, and broken bytes on the raw socket."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.fuzz.raw import broken_requests, send
from tests.service.process import ServerProcess

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
LIMIT = 300.0  # seconds
# What is valid depends on the model: which layers, heads, dimensions, prompts and token ids there are. A schema cannot
# say it, so schema-valid requests may be refused; the other checks see to it that they are refused as documented.
EXCLUDED = "positive_data_acceptance"
CASES = 500  # fewer, and something kept it from asking


@pytest.mark.slow
@pytest.mark.alone
def test_no_request_breaks_what_the_document_says(server: ServerProcess, tmp_path: Path) -> None:
    host, port = server.address
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
    command += ["--config-file", str(CONFIGURATION), "run", f"http://{host}:{port}/openapi.json"]
    command += ["--checks", "all", "--exclude-checks", EXCLUDED, "--max-examples", "8", "--seed", "1"]
    command += ["--continue-on-failure", "--generation-database", "none", "--suppress-health-check", "all"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)  # noqa: S603 - the library's own program
    cases = re.search(r"(\d+) generated", run.stdout)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert cases, run.stdout[-2000:]
    assert int(cases[1]) >= CASES


COUNT = int(os.environ.get("FUZZ_COUNT", "1500"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.alone
def test_broken_bytes(server: ServerProcess) -> None:
    statuses, before = Counter[int](), 0
    for number, message in enumerate(broken_requests(COUNT, SEED)):
        answer = send(server.address, message, patience=2.0)
        assert not answer or STATUS_LINE.match(answer), (message, answer[:200])
        found = [int(status) for status in STATUS_LINE.findall(answer)]
        faults = [status for status in found if status >= 500 and status != HTTPStatus.NOT_IMPLEMENTED]
        assert not faults, (message, answer[:2000])  # 501 is for a transfer coding that is not spoken here
        statuses.update(found)
        if number == COUNT // 3:
            before = resident_bytes(server.pid)
    assert {200, 400} <= set(statuses), statuses
    assert resident_bytes(server.pid) - before < 64e6
    status, _, body = server.request("POST", "/encode", {"inputs": "still well"})
    assert (status, json.loads(body)["usage"]["tokens"]) == (200, 4)
    assert "The cat sat" not in server.log
