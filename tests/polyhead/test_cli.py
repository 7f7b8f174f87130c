"""The commands: help, defaults, completion, and errors that say what to do."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polyhead.artifact_option import DEFAULT_ARTIFACT, DEFAULTS
from polyhead.cli import COMMANDS, main
from polyhead.completion import whole_parser
from service.settings import Settings

ROOT = Path(__file__).parents[2]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert name in shown
        assert command.__doc__


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert len(shown) > 200
    assert shown.startswith(f"usage: polyhead {name} ")  # though most of their modules are commands of their own, too
    if name in ("export", "tune"):  # as commands of their own they have no default
        assert ("[--output DIR]" if name == "export" else "[--model DIR]") in shown
    if name in ("serve", "tune", "encode"):
        default = DEFAULTS if name != "serve" else f"default: {DEFAULT_ARTIFACT}"  # serve names its variables above
        assert f"({default})" in " ".join(shown.split())
    if name in ("export", "heads"):
        assert "python -m export" not in shown


@pytest.mark.parametrize(("arguments", "code"), [(["serve", "--port", "x"], 2), (["tune", "--model", "/nowhere"], 1)])
def test_failures_name_the_command(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    assert capsys.readouterr().err.startswith(f"polyhead {arguments[0]}: ")


def test_no_command_and_a_wrong_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "polyhead encode" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["encoed"])
    assert "encode" in capsys.readouterr().err


def test_an_artifact_that_is_not_there_is_said_with_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["encode", "--model", str(tmp_path / "nothing"), "cat"]) == 1
    assert f"{tmp_path / 'nothing'} holds no manifest.json: make an artifact with" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["encode", "cat"], ["tune"], ["serve", "--port", "0"]])
def test_without_a_model_and_without_the_default_one_it_says_how_to_make_one(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLYHEAD_MODEL", raising=False)
    run = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "polyhead", *given],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert run.returncode == 1
    assert "artifacts/all-MiniLM-L6-v2 holds no manifest.json: make an artifact with" in run.stderr.splitlines()[-1]


def note(seen: list[list[str]]) -> Callable[[list[str]], int]:
    """A command that only notes what it is given."""

    def command(arguments: list[str], **_: str) -> int:
        seen.append(list(arguments))
        return 0

    return command


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ([], "artifacts/all-MiniLM-L6-v2"),
        (["--precision", "int8"], "artifacts/all-MiniLM-L6-v2"),
        (["./other-model"], "artifacts/other-model"),
        (["--name", "mine", "owner/model"], "artifacts/model"),
        (["./other-model", "--output=mine"], "mine"),
    ],
)
def test_an_export_is_named_after_its_model(
    given: list[str], output: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[argparse.Namespace] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("export.cli._export", lambda options, _: seen.append(options))
    assert main(["export", *given]) == 0
    assert [options.output for options in seen] == [Path(output)]


def test_heads_is_given_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], str]] = []

    def run(given: list[str], program: str, *_: Path) -> int:
        seen.append((given, program))
        return 0

    monkeypatch.setattr("export.heads.cli.main", run)
    for command in (["export", "heads"], ["heads"]):
        assert main([*command, "artifacts/mine", "--corpus", "texts.txt"]) == 0
    given = ["artifacts/mine", "--corpus", "texts.txt"]
    assert seen == [(given, "polyhead export heads"), (given, "polyhead heads")]


@pytest.mark.parametrize("given", [["encode", "cat"], ["tune"], ["heads", "--corpus", "x"]])
@pytest.mark.parametrize("is_named", [True, False], ids=["an argument wins", "a variable"])
def test_the_variable_names_the_artifact_of_every_command(
    given: list[str],
    is_named: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYHEAD_MODEL", "of the variable")
    named = ["--model", "named"] if given[0] == "encode" else ["named"]
    assert main([*given, *(named if is_named else [])]) == 1
    assert ("named" if is_named else "of the variable") in capsys.readouterr().err.splitlines()[-1]


def test_an_artifact_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["tune", "one", "--model", "other"])
    assert "argument --model: not allowed with argument ARTIFACT" in capsys.readouterr().err


def test_tune_is_a_command_of_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "service", "tune", "--help"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "artifact to measure" in run.stdout
    assert run.stderr == "python -m service tune is now polyhead tune\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_knows_commands_and_flags(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*COMMANDS, "max-batch-tokens", "prune-heads", "conllu", "prompt-name"):
        assert word in script


def test_completion_says_that_a_disk_is_full() -> None:
    command = [sys.executable, "-m", "polyhead", "completion", "bash"]
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    message = "polyhead completion: cannot write standard output: No space left on device\n"
    assert (run.returncode, run.stderr) == (1, message)


def test_bash_takes_the_completion_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    subprocess.run(["bash", "-n", str(script)], check=True)  # noqa: S603, S607 - syntax only


def test_the_described_flags_of_serve_are_its_settings() -> None:
    assert all(f"--{name.replace('_', '-')}" in whole_parser_help() for name in Settings.model_fields)


def whole_parser_help() -> str:
    (commands,) = [action for action in whole_parser()._actions if hasattr(action, "choices") and action.choices]
    assert commands.choices is not None
    described = dict(commands.choices)
    return str(described["serve"].format_help())


@pytest.mark.slow
def test_the_command_line_gives_what_the_service_gives(default_artifact: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "polyhead", "encode", "--model", str(default_artifact)]
    run = subprocess.run(  # noqa: S603 - our own program
        [*command, "The cat sat on the mat.", "--dimensions", "4"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    line = json.loads(run.stdout)
    assert line["embedding"] == pytest.approx([0.87964, -0.10653, -0.24799, 0.39165], abs=2e-5)  # the README's answer
