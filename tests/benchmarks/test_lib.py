import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.comparison import (
    Sample,
    WrongAnswer,
    check_vectors,
    compare,
)
from benchmarks.lib.engines import run_pass
from benchmarks.lib.report import (
    in_turns,
)
from benchmarks.lib.server import ServerFailed, free_port, started
from benchmarks.lib.texts import (
    make_batch,
)
from service.inference.backend import Batch, BatchOutput


def test_ways_are_summarised_by_medians_over_rounds() -> None:
    rates = iter([1.0, 100.0, 300.0, 200.0])  # the first is the warm-up

    def way() -> Sample:
        rate = next(rates)
        return Sample(rate, rate / 10, [1 / rate], requests_per_s=rate / 20)

    row = compare("", {"a": way}, rounds=3).rows[0]
    assert (row["tokens_per_s"], row["texts_per_s"], row["requests_per_s"]) == (200.0, 20.0, 10.0)
    assert row["server_cores"] is None
    assert row["spread"] == "±50%"
    assert (row["p50_ms"], row["p99_ms"]) == (5.0, 10.0)


def test_a_rate_with_failed_requests_is_no_rate() -> None:
    with pytest.raises(CannotMeasure, match="a: 2 requests failed"):
        compare("", {"a": lambda: Sample(1.0, 1.0, failed=1)}, rounds=2)
    with pytest.raises(CannotMeasure, match="a: no request was answered"):
        compare("", {"a": lambda: Sample(0.0, 0.0)}, rounds=2)


def test_vectors_may_differ_in_length_and_not_in_direction() -> None:
    expected = np.array([[1.0, 2.0], [3.0, -1.0]], dtype=np.float32)
    check_vectors(expected / np.linalg.norm(expected, axis=1, keepdims=True), expected)
    with pytest.raises(WrongAnswer, match="a vector has cosine"):
        check_vectors(expected[::-1], expected)
    with pytest.raises(WrongAnswer, match=r"vectors of shape \(1, 2\), expected \(2, 2\)"):
        check_vectors(expected[:1], expected)
    with pytest.raises(WrongAnswer, match="cosine nan"):
        check_vectors(expected * np.nan, expected)


def test_candidates_run_in_turns_and_the_warm_up_is_dropped() -> None:
    order: list[str] = []

    def run(name: str) -> int:
        order.append(name)
        return len(order)

    results = in_turns({"a": lambda: run("a"), "b": lambda: run("b")}, rounds=2)
    assert "".join(order) == "ababab"
    assert results == {"a": [3, 5], "b": [4, 6]}


SERVER = """
import http.server, os, sys
held = bytearray(60_000_000)
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
        assert server.session is not None
        assert server.ready_after is not None
        assert 0 < server.ready_after < 30
        assert (server.resident_bytes() or 0) > 60e6
        assert server.threads() == 1
        server.pause()
        used = server.cpu_seconds()
        time.sleep(0.1)
        assert used is not None
        assert used > 0
        assert server.cpu_seconds() == used
    assert not Path(f"/proc/{server.session}").exists()


def test_a_server_that_ends_is_reported_with_its_last_words() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with (
        pytest.raises(ServerFailed, match=r"was not ready \(exit code 1\): no such model"),
        started(command, free_port(), "/", {}),
    ):
        pass


class Sleeper:
    """A backend that takes its time and notes who called."""

    def __init__(self, seconds: float = 0.0, fail_at: int | None = None) -> None:
        self.seconds = seconds
        self.fail_at = fail_at
        self.threads: set[int] = set()
        self.lengths: list[int] = []

    def run(self, batch: Batch) -> BatchOutput:
        self.threads.add(threading.get_ident())
        self.lengths.append(int(batch.lengths[0]))
        if len(self.lengths) == self.fail_at:
            raise ValueError("no more")
        time.sleep(self.seconds)
        return BatchOutput(np.zeros((len(batch.lengths), 4), dtype=np.float32), None, {})

    def close(self) -> None:
        pass


def test_a_pass_counts_texts_and_real_tokens_and_times_every_run() -> None:
    batches = [make_batch([[1, 2, 3], [4]]), make_batch([[5]]), make_batch([[6, 7]])]
    backend = Sleeper(0.05)
    one = run_pass(backend, batches, workers=1)
    assert (one.texts, one.tokens) == (4, 7)
    assert backend.lengths == [3, 1, 2]
    assert len(one.latencies) == 3
    assert min(one.latencies) >= 0.05
    assert one.seconds >= 0.15
    assert one.tokens_per_s == pytest.approx(7 / one.seconds)
    assert one.texts_per_s == pytest.approx(4 / one.seconds)
