import numpy as np
import pytest

from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.comparison import Sample, best_of, compare, http_name, over_passes, ratios
from benchmarks.lib.passes import Pass
from benchmarks.lib.payloads import WrongAnswer, check_vectors, encode_requests


def test_ways_are_summarised_by_medians_over_rounds() -> None:
    rates = iter([1.0, 100.0, 300.0, 200.0])  # the first is the warm-up

    def way() -> Sample:
        rate = next(rates)
        return Sample(rate, rate / 10, [1 / rate], requests_per_s=rate / 20)

    row = compare("rates", "", {"a": way}, rounds=3).rows[0]
    assert (row["tokens_per_s"], row["texts_per_s"], row["requests_per_s"]) == (200.0, 20.0, 10.0)
    assert row["server_cores"] is None
    assert row["spread"] == "±50%"
    assert (row["p50_ms"], row["p99_ms"]) == (5.0, 10.0)


def test_a_rate_with_failed_requests_is_no_rate() -> None:
    with pytest.raises(CannotMeasure, match="a: 2 requests failed"):
        compare("rates", "", {"a": lambda: Sample(1.0, 1.0, failed=1)}, rounds=2)
    with pytest.raises(CannotMeasure, match="a: no request was answered"):
        compare("rates", "", {"a": lambda: Sample(0.0, 0.0)}, rounds=2)


def test_a_pass_becomes_a_sample() -> None:
    sample = over_passes(lambda: Pass(seconds=2.0, tokens=100, texts=6, latencies=[0.5, 1.5]))()
    assert sample == Sample(50.0, 3.0, [0.5, 1.5])
    timed = over_passes(lambda: Pass(seconds=2.0, tokens=100, texts=6, latencies=[], cpu_seconds=3.0))()
    assert timed.cpu_us_a_token == pytest.approx(30_000)


def test_groups_are_held_against_each_other_by_their_best() -> None:
    rates = {"ours, 1x2": 50.0, "ours, 2x1": 60.0, "theirs, 1x2": 20.0, "theirs, 2x1": 15.0}
    ways = {name: (lambda rate=rate: Sample(rate, rate)) for name, rate in rates.items()}
    table = compare("rates", "", ways, rounds=1)
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
