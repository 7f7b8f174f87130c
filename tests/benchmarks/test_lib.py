import sys
import time
from pathlib import Path

import pytest

from benchmarks.lib import texts
from benchmarks.lib.command import CannotMeasure, parser_of
from benchmarks.lib.comparison import Sample, compare
from benchmarks.lib.report import in_turns
from benchmarks.lib.server import free_port, started


def test_a_flag_of_several_values_may_also_be_repeated() -> None:
    parser = parser_of("A question?", takes="no time", texts_per_request=[1, 32])
    for words, expected in {"": [1, 32], "=2": [2], " 2 3": [2, 3], " 2 3 --texts-per-request 4": [2, 3, 4]}.items():
        assert parser.parse_args(f"--texts-per-request{words}".split() if words else []).texts_per_request == expected


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


LIBRARY = '''"""A module about one thing and nothing else.

A second paragraph says what the first one left out.
"""

def run() -> None:
    """Runs: `x = f(y) + {1: 2}[z] - 3 * (4 / 5) ** 6 // 7 % 8`."""

class Kept:
    """Too short."""
'''


def test_texts_are_the_prose_of_a_librarys_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "kept.py", tmp_path / "test" / "left_out.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(LIBRARY if path.parent == tmp_path else LIBRARY.replace("thing", "test"))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(texts, "topics", {"more": " ".join(["A topic", "of five words each"] * 70) + "."})
    first, second = "A module about one thing and nothing else.", "A second paragraph says what the first one left out."
    assert set(texts._read.__wrapped__("short")) == {first, second}
    entries = texts._read.__wrapped__("mixed")
    assert entries[0] == f"{first} {second}"
    assert len(entries) == 2, "code is no paragraph; the topic is too long, the class has too few words"
    monkeypatch.setattr(texts, "_read", lambda corpus: (first, second) if corpus == "short" else (first,))
    assert sorted(texts.load_texts("short", 4)) == sorted([first, second] * 2)
    assert texts.load_texts("mixed", 2) == [first, first]
    assert texts.load_texts("short", 4) == texts.load_texts("short", 4)


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
    assert 19999 < port < 32768, "Ray's workers or an outgoing connection could take it first"
    with started([sys.executable, "-c", SERVER], port, "/ready", {"TEST_PORT": str(port)}) as server:
        assert 0 < server.ready_after < 30
        assert server.resident_bytes() > 60e6
        assert len(server.processes()) == 2
        assert 60e6 < server.pss_bytes() < server.resident_bytes(), "the two share their libraries"
        assert 0 < server.pss_bytes("Pss_File") < server.pss_bytes() - 60e6
        server.pause()
        used = server.cpu_seconds()
        time.sleep(0.1)
        assert used > 0
        assert server.cpu_seconds() == used
    assert not Path(f"/proc/{server.session}").exists()


def test_a_server_that_ends_is_reported_with_its_last_words() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    server = started(command, free_port(), "/", {})
    with pytest.raises(CannotMeasure, match=r"was not ready \(exit code 1\): no such model"), server:
        pass
