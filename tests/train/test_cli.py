import argparse
import re
from pathlib import Path

import pytest

from model.artifact import Artifact
from polyhead.cli import main
from tests.train.conftest import read_back
from train.cli import parser
from train.commands import COMMANDS
from train.folder import RECORD
from train.settings import CHECKPOINT, KINDS

SHORT = ["--epochs", "0.2", "--batch-size", "8", "--evaluations", "1"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: polyhead train {name} ")
    assert re.search(rf"example:\n +polyhead train {name} ", shown)


def test_every_command_writes_a_folder_and_says_so(
    tiny_folder: Path,
    text_file: Path,
    rated_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = f"--texts {text_file}"
    commands = {
        "heal": f"--remove 0.4 {texts}",
        "gates": f"--remove 0.4 {texts}",
        "distil": f"--layers 2 --heads 2 {texts}",
        "contrast": f"--pairs {rated_file} --chunk 5",
        "classify": f"--rows {rated_file} --pairs --scores",
    }
    assert commands.keys() == COMMANDS.keys()
    monkeypatch.setenv("RANK", "1")  # not the first of several processes, which exports
    for name, flags in commands.items():
        output, artifact = tmp_path / name, tmp_path / "artifact"
        given = ["train", name, str(tiny_folder), *flags.split(), "--output", str(output), "--artifact", str(artifact)]
        assert main([*given, *SHORT]) == 0, name
        said = capsys.readouterr().err
        assert f"wrote {output}: " in said
        assert f"export it: polyhead export {output} --output artifacts/{name}" in said
        assert {path.name for path in output.iterdir()} >= {"config.json", "model.safetensors", RECORD, "training.svg"}
        assert not artifact.exists()
        assert main([*given, *SHORT]) == 1
        said = f"polyhead train {name} failed: {output} exists and is not empty: name another --output"
        assert capsys.readouterr().err.splitlines()[-1] == said


@pytest.mark.slow
def test_the_result_is_exported_where_that_is_asked_for(tiny_folder: Path, text_file: Path, tmp_path: Path) -> None:
    output, artifact = tmp_path / "healed", tmp_path / "artifact"
    given = ["train", "heal", str(tiny_folder), "--remove", "0.4", "--texts", str(text_file), "--output", str(output)]
    assert main([*given, *SHORT, "--artifact", str(artifact)]) == 0
    assert Artifact.open(artifact).manifest.config == read_back(output).encoder.config


@pytest.mark.parametrize(("name", "rate"), [("heal", 6e-5), ("gates", 3e-4), ("contrast", 5e-5), ("classify", 5e-5)])
def test_a_command_has_its_own_learning_rate(name: str, rate: float) -> None:
    needed = {"heal": "--texts", "gates": "--remove=0.4 --texts", "contrast": "--pairs", "classify": "--rows"}[name]
    given = [name, *needed.split(), "file", "--output", "folder"]
    assert parser().parse_args(given).learning_rate == rate
    assert parser().parse_args([*given, "--learning-rate", "0.5"]).learning_rate == 0.5


def test_a_flag_of_several_values_may_be_repeated_and_a_value_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["heal", "--output", "o", "--texts", "a", "b", "--texts", "c"]
    options = parser().parse_args([*given, "--only", "heads", "--only", "layers"])
    assert (options.texts, options.only) == ([Path("a"), Path("b"), Path("c")], ["heads", "layers"])
    assert tuple(parser().parse_args(given).only) == KINDS
    shares = ["orders", "--pairs", "p", *given[1:], "--shares", "0.2", "0.2", "--shares", "0.3", "0.20"]
    assert parser().parse_args(shares).shares == [0.2, 0.3]
    assert main(["train", "heal", "--help"]) == 0
    assert "--texts FILE ... " in capsys.readouterr().out


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
    given: str,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "student.json").write_text('{"num_heads": [4, 2]}')
    monkeypatch.chdir(tmp_path)
    name, *flags = given.split()
    assert main(["train", name, "--output", "run", *flags]) == code
    assert message in capsys.readouterr().err


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
    saved: list[str] | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(options: argparse.Namespace) -> None:
        if saved is not None:
            options.output.mkdir()
            for name in saved:
                (options.output / name).touch()
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(COMMANDS["heal"], "run", stopped)
    given = ["train", "heal", "--remove", "0.4", "--texts", "x", "--output", "run", "--artifact"]
    assert main([*given, "made"]) == 130
    assert capsys.readouterr().err.endswith(f"{message}\n")
