import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.train.conftest import read_back
from train.errors import RunError
from train.folder import RECORD
from train.parallel import Processes

MEASURED = """
import os, sys
sys.path.insert(0, os.getcwd())
from export.texts import tokenize
from model.encoder import Encoder
from tests.networks import TINY, draw_weights, tiny_tokenizer
from train import costs, parallel
rows = tokenize(["the cat"] * 8, tiny_tokenizer(), 9)
with parallel.joined("cpu") as processes:
    seconds = costs.time_networks([draw_weights(Encoder(TINY))], rows, "fp32")
    open(sys.argv[1] + str(processes.rank), "w").write(str(seconds))
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
RUN = ["--epochs", "0.6", "--batch-size", "7", "--evaluations", "1"]


def test_every_row_is_one_processs() -> None:
    rows = [Processes(rank, 3).rows(8) for rank in range(3)]
    assert [list(range(8))[part] for part in rows] == [[0, 1], [2, 3, 4], [5, 6, 7]]
    with pytest.raises(RunError, match="a batch of 2 cannot be shared by 3 processes"):
        Processes(0, 3).rows(2)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["heal", "gates", "contrast", "classify"])
def test_two_processes_have_the_losses_of_one(
    command: str, tiny_folder: Path, text_file: Path, rated_file: Path, tmp_path: Path
) -> None:
    texts = ["--texts", str(text_file), "--remove", "0.4", "--substitute", "0.2", "--relation-weight", "0.5"]
    given = {
        "heal": texts,
        "gates": texts,
        "contrast": ["--pairs", str(rated_file), "--chunk", "5"],
        "classify": ["--rows", str(rated_file), "--pairs", "--scores"],
    }[command]
    records, weights = [], []
    for name, launcher in (("one", []), ("two", TORCHRUN)):
        output = tmp_path / name
        asked = ["train.cli", command, str(tiny_folder), *given, *RUN, "--output", str(output)]
        subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, *launcher, "-m", *asked],
            check=True,
            capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        records.append(json.loads((output / RECORD).read_bytes()))
        weights.append(read_back(output).encoder.state_dict())
    losses = [[point["loss"] for point in record["losses"]] for record in records]
    assert len(losses[0]) > 5
    assert losses[1] == pytest.approx(losses[0], abs=2e-5)
    for tensor, expected in weights[0].items():
        torch.testing.assert_close(weights[1][tensor], expected, atol=2e-4, rtol=1e-3)


@pytest.mark.slow
def test_two_processes_choose_by_the_times_of_the_first(tmp_path: Path) -> None:
    (program := tmp_path / "program.py").write_text(MEASURED)
    subprocess.run([sys.executable, *TORCHRUN, str(program), str(tmp_path / "rank")], check=True, capture_output=True)  # noqa: S603
    found = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(2)]
    assert found[0] == found[1]
    assert found[0][0] > 0
