"""What every script does where it cannot measure: one line on standard error and exit code 2, before it takes long."""

import importlib
import os
import signal
from pathlib import Path

import pytest

from benchmarks.command import program

# Every script, with what it cannot do without; "DIR" stands for the artifact, "CSV" for a file.
SCRIPTS = {
    "attention_claims": (),
    "attention_cost": ("--model", "DIR"),
    "compression": ("--model", "DIR"),
    "drawn": ("minilm-l6", "DIR"),
    "engine": ("DIR",),
    "gpu": ("DIR",),
    "http_closed": ("--model", "DIR"),
    "http_cost": ("--model", "DIR"),
    "http_open": ("--model", "DIR"),
    "peers": ("DIR",),
    "pruning": ("DIR", "--pairs", "CSV"),
    "quality": ("DIR", "--pairs", "CSV"),
    "replicas": ("--model", "DIR"),
    "soak": ("--model", "DIR"),
    "stages": ("--model", "DIR"),
    "startup": ("DIR",),
    "texts": ("--tokenizer", "CSV"),
}
NUMBERS = [
    *[(name, "--seconds", "0") for name in ("http_closed", "stages", "peers")],
    ("http_closed", "--texts-per-request", "0"),
    ("http_open", "--rate", "inf"),
    ("http_open", "--share", "-1"),
    ("http_open", "--warmup", "nan"),
    ("http_open", "--seed", "-1"),
    ("http_cost", "--connections", "0"),
    ("soak", "--minutes", "0.05"),
    ("soak", "--interval", "0"),
    ("replicas", "--drain-delay", "-1"),
    ("replicas", "--rate", "1"),
    ("startup", "--rounds", "0"),
    ("startup", "--set", "POLYHEAD_WORKERS"),
    ("stages", "--url", "localhost:8000"),
    ("attention_cost", "--lengths", "0"),
    ("attention_claims", "--runs", "0"),
    ("attention_claims", "--lengths", "512"),
    ("engine", "--tokens", "many"),
    ("gpu", "--product", "0"),
    ("compression", "--rounds", "0"),
    ("pruning", "--seconds", "-2"),
    ("peers", "--plot", "no/such/folder.svg"),
    ("texts", "--count", "0"),
]


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    monkeypatch.setattr("sys.argv", [f"benchmarks/{name}.py", *arguments])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"benchmarks.{name}").main()
    return end.value.code


def words(name: str, folder: Path) -> list[str]:
    places = {"DIR": str(folder), "CSV": str(folder / "no.csv")}
    return [places.get(word, word) for word in SCRIPTS[name]]


@pytest.mark.parametrize("name", [name for name, needs in SCRIPTS.items() if needs])
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


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_asks_the_question_and_says_how_long_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, "--help", monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert (importlib.import_module(f"benchmarks.{name}").__doc__ or "none").splitlines()[0] in shown
    assert "\nTakes " in shown


def test_every_script_is_here() -> None:
    files = Path(__file__).parents[2].glob("benchmarks/*.py")
    assert {path.stem for path in files if "\n@program\n" in path.read_text()} == set(SCRIPTS)


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
