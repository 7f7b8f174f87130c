"""Schemathesis over the whole OpenAPI document of a running service, real model and all."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
