"""The commands as a person gives them: help, what was written, and failures in one line."""

import argparse
import re
from pathlib import Path

import pytest

from export.checkpoint import read_checkpoint
from export.sources import Folder
from model.artifact import Artifact
from polyhead.cli import main
from train.cli import COMMANDS, parser
from train.folder import RECORD

SHORT = ["--epochs", "0.2", "--batch-size", "8", "--evaluations", "1"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: polyhead train {name} ")
    assert re.search(rf"example:\n +polyhead train {name} ", shown)


def test_healing_from_the_command_line(
    tiny_folder: Path, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "healed"
    given = ["train", "heal", str(tiny_folder), "--remove", "0.4", "--texts", str(text_file), "--output", str(output)]
    assert main([*given, *SHORT]) == 0
    assert f"export it: polyhead export {output} --output artifacts/healed" in capsys.readouterr().err
    assert {path.name for path in output.iterdir()} >= {"config.json", "model.safetensors", RECORD, "training.svg"}
    assert main([*given, *SHORT]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("polyhead train heal failed: RunError: ")


@pytest.mark.slow
def test_the_result_is_exported_where_that_is_asked_for(tiny_folder: Path, text_file: Path, tmp_path: Path) -> None:
    output, artifact = tmp_path / "healed", tmp_path / "artifact"
    given = ["train", "heal", str(tiny_folder), "--remove", "0.4", "--texts", str(text_file), "--output", str(output)]
    assert main([*given, *SHORT, "--artifact", str(artifact)]) == 0
    assert Artifact.open(artifact).manifest.config == read_checkpoint(Folder(output, "healed")).encoder.config


def test_the_first_of_several_processes_exports(
    tiny_folder: Path, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    given = ["train", "gates", str(tiny_folder), "--remove", "0.4", "--texts", str(text_file)]
    assert main([*given, *SHORT, "--output", str(tmp_path / "run"), "--artifact", str(tmp_path / "artifact")]) == 0
    assert not (tmp_path / "artifact").exists()


def test_what_the_other_commands_write_is_said(
    tiny_folder: Path, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(
        "".join(
            f"{line},{line[::-1]},{index % 5}\n" for index, line in enumerate(text_file.read_text().split("\n")[:40])
        )
    )
    texts, model = ["--texts", str(text_file)], str(tiny_folder)
    commands = {
        "gates": [model, "--remove", "0.4", *texts],
        "distil": [model, "--layers", "2", "--heads", "2", *texts],
        "contrast": [model, "--pairs", str(rows), "--chunk", "5"],
        "classify": [model, "--rows", str(rows), "--pairs", "--scores"],
    }
    assert {*commands, "heal"} == {*COMMANDS}
    for name, given in commands.items():
        output = tmp_path / name
        assert main(["train", name, *given, "--output", str(output), *SHORT]) == 0, name
        assert f"wrote {output}: " in capsys.readouterr().err
        assert (output / RECORD).is_file()


@pytest.mark.parametrize(("name", "rate"), [("heal", 6e-5), ("gates", 3e-4), ("contrast", 5e-5), ("classify", 5e-5)])
def test_a_command_has_its_own_learning_rate(name: str, rate: float) -> None:
    needed = {"heal": "--texts", "gates": "--remove=0.4 --texts", "contrast": "--pairs", "classify": "--rows"}[name]
    given = [name, *needed.split(), "file", "--output", "folder"]
    assert parser().parse_args(given).learning_rate == rate
    assert parser().parse_args([*given, "--learning-rate", "0.5"]).learning_rate == 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--remove", "1.5"], "argument --remove: expected a share of at least 0 and below 1, got '1.5'"),
        (["--remove", "0.4", "--epochs", "0"], "argument --epochs: expected a number above 0, got '0'"),
        (["--remove", "0.4", "--heads", "x.json"], "argument --heads: not allowed with argument --remove"),
    ],
)
def test_wrong_flags_are_named(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "heal", "--texts", "x", "--output", "y", *given]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("is_saved", "message"), [(False, "nothing was written"), (True, "to go on, give the same command with --resume")]
)
def test_an_interruption_says_what_there_is_to_go_on_from(
    is_saved: bool, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def heal(options: argparse.Namespace) -> None:
        if is_saved:
            options.output.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "heal", (COMMANDS["heal"][0], heal))
    assert main(["train", "heal", "--remove", "0.4", "--texts", "x", "--output", str(tmp_path / "run")]) == 130
    assert capsys.readouterr().err.endswith(f"{message}\n")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--pairs", "x.csv"], "--pairs is for --prune-to-quality"),
        (["--only", "layers"], "--only and --cost-precision are for --faster"),
        (["--cost-precision", "int8"], "--only and --cost-precision are for --faster"),
    ],
)
def test_flags_of_another_choice_are_refused(
    given: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["train", "heal", "--remove", "0.4", "--texts", "x", "--output", str(tmp_path / "run"), *given]
    assert main(asked) == 1
    assert capsys.readouterr().err == f"polyhead train heal failed: RunError: {message}\n"


def test_a_file_that_is_not_there_is_named_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["train", "heal", "--remove", "0.4", "--texts", "nowhere.txt", "--output", str(tmp_path / "run")]
    assert main(given) == 1
    assert capsys.readouterr().err.startswith("polyhead train heal failed: DataError: cannot read nowhere.txt: ")
