"""The commands as a person gives them: help, what was written, and failures in one line."""

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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, lines = tmp_path / "rows.csv", text_file.read_text().split("\n")[:40]
    rows.write_text("".join(f"{line},{line[::-1]},{index % 5}\n" for index, line in enumerate(lines)))
    texts = f"--texts {text_file}"
    commands = {
        "heal": f"--remove 0.4 {texts}",
        "gates": f"--remove 0.4 {texts}",
        "distil": f"--layers 2 --heads 2 {texts}",
        "contrast": f"--pairs {rows} --chunk 5",
        "classify": f"--rows {rows} --pairs --scores",
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


def test_labels_of_tokens_have_no_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["train", "classify", "--rows", "x.tsv", "--level", "tokens", "--output", str(tmp_path / "run")]
    for flag in ("--pairs", "--scores"):
        assert main([*given, flag]) == 1
        assert "--level tokens learns a label a word: leave --pairs and --scores" in capsys.readouterr().err


FAILED = "polyhead train heal failed: "


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ("--remove 1.5", 2, "argument --remove: expected a share of at least 0 and below 1, got '1.5'"),
        ("--faster 1", 2, "argument --faster: expected a number above 1, got '1'"),
        ("--remove 0.4 --epochs 0", 2, "argument --epochs: expected a number above 0, got '0'"),
        ("--remove 0.4 --heads x.json", 2, "argument --heads: not allowed with argument --remove"),
        ("--pairs x.csv", 1, f"{FAILED}--pairs is for --prune-to-quality\n"),
        ("--only layers", 1, f"{FAILED}--only and --cost-precision are for --faster\n"),
        ("--cost-precision int8", 1, f"{FAILED}--only and --cost-precision are for --faster\n"),
        ("--remove 0.4 --artifact run --output ./run", 1, f"{FAILED}--artifact run is --output: the network and its "),
        ("--remove 0.4 --device gpu", 1, f"{FAILED}--device gpu cannot be used: "),
        ("--remove 0.4", 1, f"{FAILED}cannot read nowhere.txt: "),  # before anything else is read
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    given: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    assert main(["train", "heal", "--texts", "nowhere.txt", "--output", str(output), *given.split()]) == code
    assert message in capsys.readouterr().err


def test_layers_do_not_replace_the_heads_of_a_student_s_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (student := tmp_path / "student.json").write_text('{"num_heads": [4, 2]}')
    given = ["--student", str(student), "--layers", "2", "--texts", "nowhere.txt", "--output", str(tmp_path / "run")]
    assert main(["train", "distil", *given]) == 1
    assert "has num_heads, one a layer: leave out --layers" in capsys.readouterr().err


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
