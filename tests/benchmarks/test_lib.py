import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.comparison import (
    Sample,
    WrongAnswer,
    best_of,
    check_vectors,
    compare,
    encode_requests,
    http_name,
    ratios,
)
from benchmarks.lib.engines import run_pass
from benchmarks.lib.report import (
    CoresUsed,
    Table,
    emit,
    in_turns,
    percentiles,
    slope,
)
from benchmarks.lib.server import ServerFailed, free_port, started
from benchmarks.lib.texts import (
    LONGEST_WORDS,
    SHORTEST_WORDS,
    fingerprint,
    load_texts,
    make_batch,
    make_batches,
    one_at_a_time,
    sorted_by_length,
    text_of_tokens,
)
from service.inference.backend import Batch, BatchOutput
from tests.tokenizers import TEXTS, bpe, wordpiece


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


def test_groups_are_held_against_each_other_by_their_best() -> None:
    rates = {"ours, 1x2": 50.0, "ours, 2x1": 60.0, "theirs, 1x2": 20.0, "theirs, 2x1": 15.0}
    ways = {name: (lambda rate=rate: Sample(rate, rate)) for name, rate in rates.items()}
    table = compare("", ways, rounds=1)
    assert best_of(table, ("theirs",)) == ("theirs, 1x2", 20.0)
    assert best_of(table, ("ours", "1x2")) == ("ours, 1x2", 50.0)
    assert best_of(table, ("rs, 2x1",)) is None  # of a longer name
    pairs = [(("ours",), ("theirs",)), (("ours",), ("nobody",))]
    assert ratios("ratios", "", pairs, table).rows == [{"of": "ours, 2x1", "over": "theirs, 1x2", "ratio": 3.0}]


def test_requests_hold_every_text_once_with_its_tokens() -> None:
    texts, rows = ["a", "b", "c", "d", "e"], [[1], [1, 2], [1, 2, 3], [1], [1]]
    pairs = encode_requests(texts, rows, 2, {"normalize": False})
    assert [request.tokens for request in pairs] == [3, 4]
    assert [request.texts for request in pairs] == [2, 2]
    assert pairs[1].data.endswith(b'{"inputs": ["c", "d"], "prompt": "", "normalize": false}')
    assert encode_requests(texts, rows, 1)[0].data.endswith(b'{"inputs": "a", "prompt": ""}')
    with pytest.raises(CannotMeasure, match="5 texts make no request of 6"):
        encode_requests(texts, rows, 6)
    assert (http_name(1), http_name(2)) == ("HTTP, 1 text a request", "HTTP, 2 texts a request")


def test_vectors_may_differ_in_length_and_not_in_direction() -> None:
    expected = np.array([[1.0, 2.0], [3.0, -1.0]], dtype=np.float32)
    check_vectors(expected / np.linalg.norm(expected, axis=1, keepdims=True), expected)
    with pytest.raises(WrongAnswer, match="a vector has cosine"):
        check_vectors(expected[::-1], expected)
    with pytest.raises(WrongAnswer, match=r"vectors of shape \(1, 2\), expected \(2, 2\)"):
        check_vectors(expected[:1], expected)
    with pytest.raises(WrongAnswer, match="cosine nan"):
        check_vectors(expected * np.nan, expected)


def test_a_table_aligns_numbers_right_and_words_left() -> None:
    table = Table("rates", "what is fast", ("way", "per_s", "p50"))
    table.add(way="a", per_s=1234.5)
    table.add(way="longer", per_s=2.5, p50=1)
    assert table.lines() == ["what is fast", "way     per_s  p50", "a       1,234    -", "longer    2.5    1"]
    with pytest.raises(KeyError, match="rates: no column speed"):
        table.add(speed=1)


def test_the_last_line_is_json_with_rows_and_machine(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("rates", "what is fast", ("way", "per_s"))
    table.add(way="a", per_s=1234.56789)
    emit("test", [table], rounds=3)
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    assert result["tables"] == {"rates": [{"way": "a", "per_s": 1234.57}]}
    assert (result["benchmark"], result["rounds"]) == ("test", 3)
    assert result["machine"]["cores"] >= 1
    assert "what is fast" in lines


def test_work_of_others_is_told_from_our_own() -> None:
    began = CoresUsed.now()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    while time.process_time() % 0.4 > 0.02:  # and some work here
        pass
    after = CoresUsed.now()
    assert after.by_us - began.by_us >= 0.3
    assert after.by_all - began.by_all >= after.by_us - began.by_us - 0.1
    assert 0 <= began.elsewhere() <= (after.by_all - began.by_all) / (after.at - began.at)


def test_percentiles_are_values_that_occurred() -> None:
    seconds = [index / 1000 for index in range(1, 101)]
    assert percentiles(seconds) == pytest.approx({"p50_ms": 50.0, "p95_ms": 95.0, "p99_ms": 99.0})
    assert percentiles([0.002]) == {"p50_ms": 2.0, "p95_ms": 2.0, "p99_ms": 2.0}
    assert percentiles([]) == {}


def test_candidates_run_in_turns_and_the_warm_up_is_dropped() -> None:
    order: list[str] = []

    def run(name: str) -> int:
        order.append(name)
        return len(order)

    results = in_turns({"a": lambda: run("a"), "b": lambda: run("b")}, rounds=2)
    assert "".join(order) == "ababab"
    assert results == {"a": [3, 5], "b": [4, 6]}


def test_slope_is_that_of_the_fitted_line() -> None:
    times = np.linspace(0, 60, 20)
    values = 7.0 + 0.25 * times + np.random.default_rng(0).normal(0, 0.1, 20)
    assert slope(times.tolist(), values.tolist()) == pytest.approx(float(np.polyfit(times, values, 1)[0]))
    assert slope([1.0], [5.0]) == 0.0


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


pytestmark = pytest.mark.slow  # reads the standard library's source, ten seconds


def test_a_sample_is_the_same_every_time_and_seeds_differ() -> None:
    assert load_texts("short", 50) == load_texts("short", 50)
    assert load_texts("short", 50, seed=1) != load_texts("short", 50, seed=2)
    assert fingerprint(load_texts("mixed", 50)) == fingerprint(load_texts("mixed", 50))
    assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])


def test_short_texts_are_different_prose_paragraphs_on_one_line() -> None:
    texts = load_texts("short", 2000)
    assert len(set(texts)) == len(texts)
    words = [len(text.split()) for text in texts]
    assert SHORTEST_WORDS <= min(words) <= max(words) <= LONGEST_WORDS
    assert 15 < sum(words) / len(words) < 35
    assert not any("\n" in text or ">>>" in text for text in texts)


ROWS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=30)


@given(rows=ROWS, budget=st.integers(1, 40))
def test_every_plan_runs_every_text_once(rows: list[list[int]], budget: int) -> None:
    for plan in (one_at_a_time(rows), sorted_by_length(rows, budget)):
        assert sorted(index for run in plan for index in run) == list(range(len(rows)))
        assert sum(int(batch.lengths.sum()) for batch in make_batches(rows, plan)) == sum(map(len, rows))


@given(rows=ROWS, budget=st.integers(1, 40))
def test_sorted_runs_keep_their_budget_and_go_from_long_to_short(rows: list[list[int]], budget: int) -> None:
    plan = sorted_by_length(rows, budget)
    lengths = [len(rows[index]) for run in plan for index in run]
    assert lengths == sorted(lengths, reverse=True)
    for run, batch in zip(plan, make_batches(rows, plan), strict=True):
        assert batch.input_ids.size <= budget or len(run) == 1
    for run, following in pairwise(plan):  # a run ends only where one more text would not fit
        assert len(rows[run[0]]) * (len(run) + 1) > budget
        assert len(rows[following[0]]) <= len(rows[run[-1]])


@pytest.mark.parametrize("make", [wordpiece, bpe])
def test_a_text_of_so_many_tokens(make: Callable[[], Tokenizer]) -> None:
    words = [word for text in TEXTS for word in text.split()] * 4
    for count in (7, 30):
        text = text_of_tokens(make(), words, count)
        assert len(make().encode(text).tokens) == count
        assert set(text.split()) <= set(words)


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


def test_a_failure_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="no more"):
        run_pass(Sleeper(fail_at=2), [make_batch([[1]])] * 4, workers=1)
