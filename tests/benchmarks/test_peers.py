import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lib.command import CannotMeasure
from benchmarks.peers.peers import start_worker
from benchmarks.peers.worker import Task

TASK = Task(weights="", cores=2, texts=["a", "b b", "c"], rows=[[7], [8, 9], [6]], plans={"one": [[0], [1], [2]]})


PEER = """
import numpy as np
from benchmarks.peers.worker import Loaded, serve

def load(task):
    print("libraries print to standard output")
    yield Loaded("f32", (2, 1), len, lambda count: np.full((count, 2), task.cores))

serve(load)
"""


def test_a_peer_in_its_own_process_measures_and_embeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_peer.py").write_text(PEER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:.")
    with start_worker(Path(sys.executable), "", TASK, module="made_up_peer") as peer:
        np.testing.assert_array_equal(peer.vectors(), np.full((4, 2), 2.0))
        (name, way), *others = peer.ways("Made up").items()
        assert (name, others) == ("Made up: f32, one, 2x1", [])
        sample = way()
        assert len(sample.latencies) == 3
        assert (sample.cpu_us_a_token or 0) > 0
        assert sample.tokens_per_s == pytest.approx(sample.texts_per_s * 4 / 3)


def test_a_peer_that_cannot_start_says_why() -> None:
    worker = start_worker(Path(sys.executable), "no_such_engine", TASK)
    with pytest.raises(CannotMeasure, match="KeyError: 'no_such_engine'"), worker:
        pass
