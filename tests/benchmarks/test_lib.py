import sys
import time
from pathlib import Path

import pytest

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.comparison import Sample, compare
from benchmarks.lib.report import in_turns
from benchmarks.lib.server import free_port, pss_bytes, started


def test_a_rate_with_failed_requests_is_no_rate() -> None:
    with pytest.raises(CannotMeasure, match="a: 2 requests failed"):
        compare("", {"a": lambda: Sample(1.0, 1.0, failed=1)}, rounds=2)
    with pytest.raises(CannotMeasure, match="a: no request was answered"):
        compare("", {"a": lambda: Sample(0.0, 0.0)}, rounds=2)


def test_candidates_run_in_turns_and_the_warm_up_is_dropped() -> None:
    order: list[str] = []

    def run(name: str) -> int:
        order.append(name)
        return len(order)

    results = in_turns({"a": lambda: run("a"), "b": lambda: run("b")}, rounds=2)
    assert "".join(order) == "ababab"
    assert results == {"a": [3, 5], "b": [4, 6]}


SERVER = """
import http.server, os, subprocess, sys
held = bytearray(60_000_000)
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(os.environ["TEST_PORT"])), Handler).serve_forever()
"""


def test_a_server_is_started_metered_paused_and_stopped() -> None:
    port = free_port()
    with started([sys.executable, "-c", SERVER], port, "/ready", {"TEST_PORT": str(port)}) as server:
        assert 0 < server.ready_after < 30
        assert server.resident_bytes() > 60e6
        assert server.threads() == 2
        first, second = server.processes()
        alone = pss_bytes(first)
        assert alone < server.pss_bytes() <= alone + pss_bytes(second) + 1e6
        server.pause()
        used = server.cpu_seconds()
        time.sleep(0.1)
        assert used > 0
        assert server.cpu_seconds() == used
    assert not Path(f"/proc/{server.session}").exists()


def test_a_server_that_ends_is_reported_with_its_last_words() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with (
        pytest.raises(CannotMeasure, match=r"was not ready \(exit code 1\): no such model"),
        started(command, free_port(), "/", {}),
    ):
        pass
