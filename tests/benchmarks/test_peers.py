import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lib.comparison import WrongAnswer
from benchmarks.lib.report import Table
from benchmarks.peers.int8 import summarize
from benchmarks.peers.peers import PeerFailed, start_worker
from benchmarks.peers.rerank import Question, read_scores, require_same_order
from benchmarks.peers.worker import Task, pad, pull

TASK = Task(weights="", cores=2, texts=["a", "b b", "c"], rows=[[7], [8, 9], [6]], plans={"one": [[0], [1], [2]]})


PEER = """
import numpy as np
from benchmarks.peers.worker import Peer, serve

def make(task):
    print("libraries print to standard output")
    ways = {"all": lambda: [0.5] * len(task.plans["one"])}
    return Peer(ways, lambda indices: np.ones((len(indices), 2)) * task.cores)

serve(make)
"""


def test_rows_are_padded_on_the_right_with_their_mask() -> None:
    input_ids, mask = pad(TASK, [1, 0])
    np.testing.assert_array_equal(input_ids, [[8, 9], [7, 0]])
    np.testing.assert_array_equal(mask, [[1, 1], [1, 0]])


def test_workers_pull_every_item_once_after_preparing() -> None:
    seen: list[int] = []
    prepared: set[int] = set()
    barrier = threading.Barrier(2, timeout=5)

    def prepare() -> None:
        prepared.add(threading.get_ident())
        barrier.wait()

    latencies = pull(seen.append, range(10), workers=2, prepare=prepare)
    assert sorted(seen) == list(range(10))
    assert len(latencies) == 10
    assert len(prepared) == 2


def test_a_peer_in_its_own_process_measures_and_embeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_peer.py").write_text(PEER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:.")
    with start_worker(Path(sys.executable), "", TASK, module="made_up_peer") as peer:
        np.testing.assert_array_equal(peer.vectors(), np.full((4, 2), 2.0))
        (name, way), *others = peer.ways("Made up").items()
        assert (name, others) == ("Made up all", [])
        sample = way()
        assert list(sample.latencies) == [0.5, 0.5, 0.5]
        assert (sample.cpu_us_a_token or 0) > 0
        assert sample.tokens_per_s == pytest.approx(sample.texts_per_s * 4 / 3)


def test_a_peer_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(PeerFailed, match="KeyError: 'no_such_engine'"),
        start_worker(Path(sys.executable), "no_such_engine", TASK),
    ):
        pass


@pytest.mark.parametrize("field", ["texts", "documents"])
def test_a_request_holds_one_query_and_counts_its_documents(field: str) -> None:
    request = Question("why", ["a", "b c"], tokens=11).request(field)
    head, _, body = request.data.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /rerank HTTP/1.1\r\n")
    assert json.loads(body) == {"query": "why", field: ["a", "b c"]}
    assert (request.texts, request.tokens) == (2, 11)


def test_scores_of_both_kinds_of_answer_are_in_the_documents_order() -> None:
    ours = [{"index": 1, "score": 0.9}, {"index": 2, "score": 0.5}, {"index": 0, "score": 0.1}]
    theirs = {"results": [{"index": item["index"], "relevance_score": item["score"]} for item in ours]}
    assert read_scores(json.dumps(ours).encode()) == [0.1, 0.9, 0.5]
    assert read_scores(json.dumps(theirs).encode()) == [0.1, 0.9, 0.5]


def test_scores_may_differ_in_scale_and_not_in_order() -> None:
    require_same_order([1.0, 20.0, 3.0, 4.0], [0.1, 0.9, 0.2, 0.3])
    with pytest.raises(WrongAnswer, match=r"rank correlation of -1\.000, expected 0\.9"):
        require_same_order([3.0, 2.0, 1.0], [1.0, 2.0, 3.0])
    with pytest.raises(WrongAnswer, match="2 scores, expected 3"):
        require_same_order([1.0, 2.0], [1.0, 2.0, 3.0])


RATES = {
    "Polyhead fp32: one text a run, 2x1": 100.0,
    "Polyhead fp32: sorted, 2x1": 200.0,
    "Polyhead int8: sorted, 2x1": 500.0,
    "Other int8: int8, sorted, 2x1": 300.0,
}


def test_each_engine_is_judged_by_its_best_rate_and_its_vectors() -> None:
    rates = Table("rates", "", ("way", "tokens_per_s", "cpu_us_a_token"))
    for way, rate in RATES.items():
        rates.add(way=way, tokens_per_s=rate, cpu_us_a_token=2e6 / rate)
    exact = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    turned = np.array([[1.0, 0.0], [3.0, 4.0]], dtype=np.float32)  # cosines 1 and 0.8
    vectors = {"Polyhead fp32": exact, "Polyhead int8": exact, "Other int8": turned, "never measured": exact}
    rows = summarize(rates, vectors, "Polyhead fp32", "").rows
    assert [(row["engine"], row["over_fp32"]) for row in rows] == [
        ("Polyhead fp32", 1.0),
        ("Polyhead int8", 2.5),
        ("Other int8", 1.5),
    ]
    assert [row["cpu_us_a_token"] for row in rows] == pytest.approx([1e4, 4e3, 2e6 / 300])
    assert rows[2]["cosine_mean"] == pytest.approx(0.9)
    assert rows[2]["cosine_worst"] == pytest.approx(0.8)
    assert rows[2]["best_way"] == "int8, sorted, 2x1"
