import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.environments import Environment, NotInstallable
from benchmarks.peers.process import PeerFailed, start_worker
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
    with start_worker(Path(sys.executable), "made_up_peer", TASK) as peer:
        np.testing.assert_array_equal(peer.vectors(), np.full((4, 2), 2.0))
        (name, way), *others = peer.ways("Made up").items()
        assert (name, others) == ("Made up all", [])
        sample = way()
        assert list(sample.latencies) == [0.5, 0.5, 0.5]
        assert (sample.cpu_us_a_token or 0) > 0
        assert sample.tokens_per_s == pytest.approx(sample.texts_per_s * 4 / 3)


def test_a_peer_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(PeerFailed, match="No module named benchmarks.no_such_peer"),
        start_worker(Path(sys.executable), "benchmarks.no_such_peer", TASK),
    ):
        pass


@pytest.mark.slow
def test_an_environment_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    environment = Environment("broken", ("./no-such-folder",), ())
    with pytest.raises(NotInstallable) as failure:
        environment.python(tmp_path)
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "broken" / "made-for").exists()
