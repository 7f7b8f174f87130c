"""What every command does where it cannot measure: one line on standard error and exit code 2, before it takes long."""

import importlib
import os
import runpy
import signal
from pathlib import Path

import pytest

from benchmarks.lib.command import program

# Every command and question with the arguments that it requires; "DIR" stands for the artifact, "CSV" for a file.
COMMANDS = {
    "attention claims": (),
    "attention cost": ("--model", "DIR"),
    "attention explaining": ("DIR",),
    "attention windows": (),
    "attention faithfulness": ("DIR", "--pairs", "DIR/pairs.csv"),
    "http storm": ("--model", "DIR"),
    "service processes": ("--model", "DIR"),
    "http gzip": ("--model", "DIR"),
    "http versions": ("DIR", "DIR", "--model", "DIR"),
    "inputs network": ("minilm-l6", "DIR"),
    "engine rates": ("DIR",),
    "engine training": ("--model", "DIR"),
    "engine transformers": (),
    "gpu rates": ("DIR",),
    "http closed": ("--model", "DIR"),
    "http cost": ("--model", "DIR"),
    "http open": ("--model", "DIR"),
    "peers encode": ("DIR",),
    "peers int8": ("DIR",),
    "peers rerank": ("DIR",),
    "inputs reranker": ("minilm-l6", "DIR"),
    "quality pruning": ("DIR", "--pairs", "CSV"),
    "quality healing": ("DIR", "--healed", "DIR", "--pairs", "CSV", "--definitions", "CSV"),
    "quality formats": ("DIR", "--pairs", "CSV", "--definitions", "CSV"),
    "quality pairs": ("DIR", "--pairs", "CSV"),
    "service replicas": ("--model", "DIR"),
    "service soak": ("--model", "DIR"),
    "engine stages": ("--model", "DIR"),
    "service startup": ("DIR",),
    "inputs lengths": ("--tokenizer", "CSV"),
}
NUMBERS = [
    *[(name, "--seconds", "0") for name in ("http closed", "engine stages", "peers encode")],
    ("http closed", "--texts-per-request", "0"),
    ("http open", "--rate", "inf"),
    ("http open", "--share", "-1"),
    ("http open", "--warmup", "nan"),
    ("http open", "--seed", "-1"),
    ("http cost", "--connections", "0"),
    ("service soak", "--minutes", "0.05"),
    ("service soak", "--interval", "0"),
    ("service replicas", "--drain-delay", "-1"),
    ("service replicas", "--rate", "1"),
    ("service startup", "--rounds", "0"),
    ("service startup", "--set", "POLYHEAD_WORKERS"),
    ("engine stages", "--url", "localhost:8000"),
    ("attention cost", "--lengths", "0"),
    ("attention claims", "--runs", "0"),
    ("attention claims", "--lengths", "512"),
    ("engine rates", "--tokens", "many"),
    ("gpu rates", "--product", "0"),
    ("http gzip", "--rounds", "0"),
    ("quality pruning", "--seconds", "-2"),
    ("peers encode", "--plot", "no/such/folder.svg"),
    ("inputs lengths", "--count", "0"),
]


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    command, *question = name.split()
    monkeypatch.setattr("sys.argv", ["__main__.py", *question, *arguments])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"benchmarks.{command}", run_name="__main__")
    return end.value.code


def words(name: str, folder: Path) -> list[str]:
    places = {"DIR": str(folder), "CSV": str(folder / "no.csv")}
    return [places.get(word, word) for word in COMMANDS[name]]


@pytest.mark.parametrize("name", [name for name, needs in COMMANDS.items() if needs])
def test_a_folder_that_is_no_artifact_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, *words(name, tmp_path), monkeypatch=monkeypatch) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"python -m benchmarks.{name}: ")
    assert str(tmp_path) in line


@pytest.mark.parametrize(("name", "option", "value"), NUMBERS)
def test_an_argument_without_sense_is_named(
    name: str,
    option: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(name, *words(name, tmp_path), option, value, monkeypatch=monkeypatch) == 2
    assert option in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_asks_the_question_and_says_how_long_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, "--help", monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m benchmarks.{name} ")
    module = importlib.import_module(f"benchmarks.{name.replace(' ', '.')}")
    assert (module.__doc__ or "none").splitlines()[0] in shown
    assert "\nTakes " in shown


@pytest.mark.parametrize("command", sorted({name.split()[0] for name in COMMANDS}))
def test_help_of_a_command_lists_its_questions(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # no line is broken
    assert run(command, "--help", monkeypatch=monkeypatch) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for question in (name.split()[1] for name in COMMANDS if name.split()[0] == command):
        module = importlib.import_module(f"benchmarks.{command}.{question}")
        assert f"{question} {(module.__doc__ or 'none').splitlines()[0]}" in shown


@pytest.mark.parametrize("question", [(), ("nothing",)])
def test_a_command_without_a_question_it_knows_names_those_it_knows(
    question: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("gpu", *question, monkeypatch=monkeypatch) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("python -m benchmarks.gpu: ")
    assert "QUESTION" in line


def test_every_question_is_here() -> None:
    files = Path(__file__).parents[3].glob("benchmarks/*/*.py")
    found = {f"{path.parent.name} {path.stem}" for path in files if "\n@program\n" in path.read_text()}
    assert found == set(COMMANDS)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_what_was_started(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    ended = []

    @program
    def main() -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            ended.append(True)

    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, ended) == (130, [True])
    assert capsys.readouterr().err.endswith(": interrupted\n")
