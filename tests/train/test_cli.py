import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model.artifact import Artifact
from tests.command import Run
from tests.train.conftest import read_back
from train.cli import parser
from train.commands import COMMANDS
from train.errors import RunError
from train.folder import RECORD
from train.parallel import Processes
from train.settings import CHECKPOINT, KINDS

SHORT = ["--epochs", "0.2", "--batch-size", "8", "--evaluations", "1"]


@pytest.fixture
def needed(text_file: Path, rated_file: Path) -> dict[str, list[str]]:
    """What each command cannot do without."""
    flags = {
        "heal": f"--remove 0.4 --texts {text_file}",
        "gates": f"--remove 0.4 --texts {text_file}",
        "distil": f"--layers 2 --heads 2 --texts {text_file}",
        "contrast": f"--pairs {rated_file} --chunk 5",
        "classify": f"--rows {rated_file} --pairs --scores",
    }
    return {name: words.split() for name, words in flags.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example(name: str, run: Run) -> None:
    shown = run("train", name, "--help")
    assert shown.startswith(f"Usage: polyhead train {name} ")
    assert re.search(rf"example:\n +polyhead train {name} ", shown)


def test_every_command_writes_a_folder_and_says_so(
    needed: dict[str, list[str]], tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    assert needed.keys() == COMMANDS.keys()
    monkeypatch.setenv("RANK", "1")  # not the first of several processes, which exports
    for name, flags in needed.items():
        output, artifact = tmp_path / name, tmp_path / "artifact"
        given = ["train", name, tiny_folder, *flags, "--output", output, "--artifact", artifact, *SHORT]
        run(*given)
        assert f"wrote {output}: " in run.said
        assert f"export it: polyhead export {output} --output artifacts/{name}" in run.said
        assert {path.name for path in output.iterdir()} >= {"config.json", "model.safetensors", RECORD, "training.svg"}
        assert not artifact.exists()
        said = f"polyhead train {name} failed: {output} exists and is not empty: name another --output"
        assert run(*given, code=1).splitlines()[-1] == said


@pytest.mark.slow
def test_the_result_is_exported_where_that_is_asked_for(
    needed: dict[str, list[str]], tiny_folder: Path, tmp_path: Path, run: Run
) -> None:
    output, artifact = tmp_path / "healed", tmp_path / "artifact"
    run("train", "heal", tiny_folder, *needed["heal"], "--output", output, *SHORT, "--artifact", artifact)
    assert Artifact.open(artifact).manifest.config == read_back(output).encoder.config


@pytest.mark.parametrize(("name", "rate"), [("heal", 6e-5), ("gates", 3e-4), ("contrast", 5e-5), ("classify", 5e-5)])
def test_a_command_has_its_own_learning_rate(name: str, rate: float) -> None:
    needed = {"heal": "--texts", "gates": "--remove=0.4 --texts", "contrast": "--pairs", "classify": "--rows"}[name]
    given = [name, *needed.split(), "file", "--output", "folder"]
    assert parser().parse_args(given).learning_rate == rate
    assert parser().parse_args([*given, "--learning-rate", "0.5"]).learning_rate == 0.5


def test_a_flag_of_several_values_may_be_repeated_and_a_value_counts_once(run: Run) -> None:
    given = ["heal", "--output", "o", "--texts", "a", "b", "--texts", "c"]
    options = parser().parse_args([*given, "--only", "heads", "--only", "layers"])
    assert (options.texts, options.only) == ([Path("a"), Path("b"), Path("c")], ["heads", "layers"])
    assert tuple(parser().parse_args(given).only) == KINDS
    shares = ["orders", "--pairs", "p", *given[1:], "--shares", "0.2", "0.2", "--shares", "0.3", "0.20"]
    assert parser().parse_args(shares).shares == [0.2, 0.3]
    assert "--texts FILE ... " in run("train", "heal", "--help")


HEAL, LABEL = "heal --texts nowhere.txt", "classify --rows x.tsv --level tokens"
NO_INTERVAL = "expected a whole number above 1, as intervals need two, got '1'"


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (f"{HEAL} --remove 1.5", 2, "argument --remove: expected a share of at least 0 and below 1, got '1.5'"),
        (f"{HEAL} --faster 1", 2, "argument --faster: expected a number above 1, got '1'"),
        (f"{HEAL} --remove 0.4 --epochs 0", 2, "argument --epochs: expected a number above 0, got '0'"),
        (f"{HEAL} --remove 0.4 --heads x.json", 2, "argument --heads: not allowed with argument --remove"),
        (f"{HEAL} --pairs x.csv", 1, "polyhead train heal failed: --pairs is for --prune-to-quality\n"),
        (f"{HEAL} --only layers", 1, " failed: --only and --cost-precision are for --faster\n"),
        (f"{HEAL} --cost-precision int8", 1, " failed: --only and --cost-precision are for --faster\n"),
        (f"{HEAL} --remove 0.4 --artifact run --output ./run", 1, " failed: --artifact run is --output: the network"),
        (f"{HEAL} --remove 0.4 --device gpu", 1, " failed: --device gpu cannot be used: "),
        (f"{HEAL} --remove 0.4", 1, " failed: cannot read nowhere.txt: "),  # before anything else is read
        (f"{LABEL} --pairs", 1, "--level tokens learns a label a word: leave --pairs and --scores"),
        (f"{LABEL} --scores", 1, "--level tokens learns a label a word: leave --pairs and --scores"),
        ("distil --student student.json --layers 2 --texts x", 1, "has num_heads, one a layer: leave out --layers"),
        ("sweep --texts texts.txt --seeds 1", 2, NO_INTERVAL),
        ("orders --texts texts.txt --seeds 1", 2, NO_INTERVAL),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    given: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    (tmp_path / "student.json").write_text('{"num_heads": [4, 2]}')
    monkeypatch.chdir(tmp_path)
    name, *flags = given.split()
    assert message in run("train", name, "--output", "run", *flags, code=code)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (None, "nothing was written"),
        ([], "run holds no checkpoint yet: remove it, and give the same command"),
        (["model.safetensors", CHECKPOINT], "to go on, give the same command with --resume"),
        (["model.safetensors"], "holds the trained network; `polyhead export run --output made` makes the artifact"),
    ],
)
def test_an_interruption_says_what_there_is_to_go_on_from(
    saved: list[str] | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def stopped(options: argparse.Namespace) -> None:
        if saved is not None:
            options.output.mkdir()
            for name in saved:
                (options.output / name).touch()
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(COMMANDS["heal"], "run", stopped)
    given = "train heal --remove 0.4 --texts x --output run --artifact made"
    assert run(*given.split(), code=130).endswith(f"{message}\n")


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
    command: str, needed: dict[str, list[str]], tiny_folder: Path, tmp_path: Path
) -> None:
    more = ["--substitute", "0.2", "--relation-weight", "0.5"] if command in {"heal", "gates"} else []
    records, weights = [], []
    for name, launcher in (("one", []), ("two", TORCHRUN)):
        output = tmp_path / name
        given = [command, str(tiny_folder), *needed[command], *more, *RUN, "--output", str(output)]
        subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, *launcher, "-m", "train.cli", *given],
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
