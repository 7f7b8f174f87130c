"""The commands: help, defaults, completion, what `info` and `verify` say, and errors that say what to do."""

import argparse
import ast
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer

from export.command import FLAG
from export.sources import ALLOW_PICKLES, DEFAULT_MODEL, pickles_refused
from model.artifact import GRAPH, MANIFEST, TOKENIZER, Manifest, read_manifest
from polyhead.__main__ import main as entry_point
from polyhead.cli import main, tree
from polyhead.output import one_line_failures, write
from service.settings import Settings
from tests.command import Run
from tests.service.fake_engine import write_fake_artifact
from tests.task_artifacts import TaskArtifact

ROOT = Path(__file__).parents[2]
COMMANDS = ("serve", "encode", "explain", "export", "train", "info", "verify", "heads", "tune", "cache")


def test_every_command_is_listed_and_explains_itself_in_one_style(run: Run) -> None:
    listed = run("--help")
    for name in COMMANDS:
        assert f"\n  {name} " in listed
        shown = run(name, "--help")
        assert run(name, "-h") == shown
        assert len(shown) > 200, name
        assert shown.startswith(f"Usage: polyhead {name} [OPTIONS]")  # though most of their modules are commands, too
        assert "\nOptions:\n" in shown
        assert "python -m" not in shown or name not in ("export", "heads", "serve")
    assert run("export", "heads", "--help").startswith("usage: polyhead export heads ")


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        (["serve", "--prot", "1"], "--port"),
        (["serve", "--precis", "int8"], "--precision"),  # the beginning of a flag, which only other commands take
        (["export", "--precison", "int8"], "--precision"),
        (["encode", "--dimension", "3", "cat"], "--dimensions"),
        (["train", "heal", "--epoch=s", "--epohcs", "2"], "--epochs"),
        (["encoed"], "encode"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(given: list[str], nearest: str, run: Run) -> None:
    assert nearest in run(*given, code=2).splitlines()[-1]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("export --precision int9", "argument --precision: invalid choice: 'int9'"),
        ("heads", "the following arguments are required: --corpus"),
        ("train heal", "the following arguments are required: --output, --texts"),
        ("serve --precision int9", "argument --precision: invalid choice: 'int9'"),
    ],
)
def test_a_wrong_flag_is_said_without_a_list_of_all(given: str, fault: str, run: Run) -> None:
    command = given.partition(" --")[0]
    head, _, said = run(*given.split(), code=2).splitlines()
    assert (head, said[: len(fault) + 7]) == (f"Try 'polyhead {command} --help' for help.", f"Error: {fault}")


@pytest.mark.parametrize(("arguments", "code"), [(["serve", "--port", "x"], 2), (["tune", "--model", "/nowhere"], 1)])
def test_failures_name_the_command(arguments: list[str], code: int, run: Run) -> None:
    assert run(*arguments, code=code).startswith(f"polyhead {arguments[0]}: ")


def test_an_interruption_while_modules_are_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, one_line_failures("polyhead"):
        raise ImportError("initialization failed") from KeyboardInterrupt()
    assert ended.value.exit_code == 130
    with pytest.raises(ImportError), one_line_failures("polyhead"):
        raise ImportError("no such module")
    monkeypatch.setattr("polyhead.cli.main", Mock(side_effect=KeyboardInterrupt))
    assert entry_point() == 130
    assert capsys.readouterr().err == "interrupted\n" * 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["info", "owner/model"], "owner/model is no folder here: `polyhead export owner/model` makes an artifact"),
        (["encode", "cat", "--model", "owner/model"], "owner/model could not be fetched"),
        (
            ["encode", "cat"],
            "there is no folder artifacts/all-MiniLM-L6-v2: make an artifact with `polyhead export "
            "--output artifacts/all-MiniLM-L6-v2`",
        ),
    ],
)
def test_a_model_that_is_not_here_is_said_with_what_makes_it(
    given: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POLYHEAD_MODEL", raising=False)
    monkeypatch.setenv("POLYHEAD_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert message in run(*given, code=1).splitlines()[-1]


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ([], "artifacts/all-MiniLM-L6-v2"),
        (["--precision", "int8"], "artifacts/all-MiniLM-L6-v2"),
        (["./other-model"], "artifacts/other-model"),
        (["--name", "mine", "owner/model"], "artifacts/model"),
        (["./other-model", "--output=mine"], "mine"),
        (["loop"], "artifacts/loop"),
    ],
)
def test_an_export_is_named_after_its_model(
    given: list[str], output: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[argparse.Namespace] = []
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    monkeypatch.setattr("export.cli._export", lambda options, _: seen.append(options))
    assert main(["export", *given]) == 0
    assert [options.output for options in seen] == [Path(output)]


def test_heads_is_given_what_was_given(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    started, given = Mock(return_value=0), ["artifacts/mine", "--corpus", "texts.txt"]
    monkeypatch.setattr("export.heads.cli.main", started)
    for command in (["export", "heads"], ["heads"]):
        run(*command, *given)
    seen = [call.args[:2] for call in started.call_args_list]
    assert seen == [(given, "polyhead export heads"), (given, "polyhead heads")]


@pytest.mark.parametrize("given", [["encode", "cat"], ["heads", "--corpus", "x"]])
@pytest.mark.parametrize("is_named", [True, False], ids=["an argument wins", "a variable"])
def test_the_variable_names_the_artifact_of_every_command(
    given: list[str], is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYHEAD_MODEL", "of the variable")
    named = ["--model", "named"] if given[0] == "encode" else ["named"]
    said = run(*given, *(named if is_named else []), code=1)
    assert ("named" if is_named else "of the variable") in said.splitlines()[-1]


def test_heads_of_no_artifact_are_the_default_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POLYHEAD_MODEL", raising=False)
    monkeypatch.setenv("POLYHEAD_CACHE", str(tmp_path))
    said = run("heads", "--corpus", "x", code=1)
    assert said.startswith(
        f"head report failed: {DEFAULT_MODEL} is no artifact to write the report into: say where with"
    )


def test_an_artifact_is_named_once(run: Run) -> None:
    for command in ("info", "tune"):
        assert "give one of the two" in run(command, "one", "--model", "other", code=2)


def test_tune_measures_what_is_named_or_the_variables_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Path]] = []
    monkeypatch.setattr("polyhead.tune.tune", lambda models, *_: seen.append(models))
    monkeypatch.setenv("POLYHEAD_MODEL", "of the variable")
    for given in (["one", "owner/model"], ["--model", "one"], []):
        assert main(["tune", *given]) == 0
    assert seen == [[Path("one"), Path("owner/model")], [Path("one")], [Path("of the variable")]]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("polyhead ex", {"explain", "export"}),
        ("polyhead serve --max-batch", {"--max-batch-tokens"}),
        ("polyhead export --precision f", {"fp16", "fp32"}),
        ("polyhead train heal --batch", {"--batch-size"}),
    ],
)
def test_completion_knows_commands_flags_and_choices(
    words: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As bash asks, for the last of the words."""
    given = {"_POLYHEAD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["polyhead"])
    main()
    assert set(capsys.readouterr().out.split()) == offered


def test_the_described_flags_of_serve_are_its_settings() -> None:
    assert {f"--{name.replace('_', '-')}" for name in Settings.model_fields} <= _flags(tree().commands["serve"])


@pytest.mark.parametrize("given", ["--version", "serve --help", "info"])
@pytest.mark.parametrize("where", ["/dev/full", ""])
def test_standard_output_that_cannot_be_written_is_one_line(
    given: str, where: str, embedder: TaskArtifact, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLYHEAD_MODEL", str(embedder.artifact))
    with io.TextIOWrapper(Path(where or os.devnull).open("wb", buffering=0), write_through=True) as shown:
        monkeypatch.setattr(sys, "stdout", shown if where else None)
        assert main(given.split()) == (0 if given == "serve --help" and not where else 1)
        assert sys.stdout is None, "Python would write once more as it ends"
    printed = capsys.readouterr().err
    said = "cannot write standard output: No space left on device\n" if where else "standard output is closed\n"
    assert printed.endswith(said) or not where
    assert printed.count("\n") <= 1


def test_letters_that_a_terminal_lacks_become_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown := io.BytesIO(), encoding="ascii"))
    write("naïve")
    assert shown.getvalue() == rb"na\xefve"


def test_messages_name_flags_that_a_command_has() -> None:
    """Every flag in the code's texts is some command's, and in the service's texts one of `serve` or `heads`."""
    known = {name: _flags(command) for name, command in tree().commands.items()}
    of_service = known["serve"] | known["heads"]
    of_any = set[str]().union(*known.values(), PIPS)
    for package, flags in (("service", of_service), ("export", of_any), ("polyhead", of_any), ("train", of_any)):
        for path in sorted((ROOT / package).rglob("*.py")):
            assert {flag for text in _texts(path) for flag in FLAG.findall(text)} <= flags | OTHERS, path


@pytest.mark.parametrize("given", ["encode a --model owner/name", "tune owner/name", "serve owner/name", "train heal"])
def test_a_package_that_is_not_installed_is_said_with_its_extra(
    given: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.setitem(sys.modules, "train.cli", None)
    printed = run(*given.split(), code=1)
    assert printed.count("\n") == 1
    assert printed.startswith(f"polyhead {given.split(maxsplit=1)[0]}: import of ")
    assert printed.endswith(": pip install 'polyhead[export]'\n")


def test_a_flag_of_pips_is_none_of_an_export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run) -> None:
    monkeypatch.setattr("export.sources.find_spec", lambda _: None)
    monkeypatch.setenv("POLYHEAD_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run("serve", code=1).endswith("or name a folder or a Hugging Face id\n")


@pytest.mark.parametrize("name", ["encode", "explain", "classify", "rerank", "similar", "tune", "serve"])
def test_flags_of_an_export_are_told_from_a_commands_own(name: str, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise pickles_refused("owner/name", "pytorch_model.bin")

    monkeypatch.setattr("polyhead.models.find_folder", refuse)
    texts = {"explain": ["a", "b"], "rerank": ["a", "b"], "similar": ["a", "b"], "tune": [], "serve": []}
    printed = run(name, *texts.get(name, ["a"]), "--model", "owner/name", code=1)
    own = _flags(tree().commands[name])
    assert ALLOW_PICKLES in printed
    assert ("flags of `polyhead export`" in printed) == (ALLOW_PICKLES not in own)


PIPS = {"--no-deps", "--quiet", "--hash", "--dest", "--requirement", "--only-binary", "--python-version", "--platform"}
OTHERS = {"--help", "--version"}


def _flags(command: Any) -> set[str]:
    """The flags of a command and of those below it."""
    context = typer.Context(command)
    own = {flag for parameter in command.get_params(context) for flag in parameter.opts if flag.startswith("--")}
    below = command.list_commands(context) if hasattr(command, "list_commands") else []
    return own.union(*(_flags(command.get_command(context, name)) for name in below))


def _texts(path: Path) -> Iterator[str]:
    """The texts in a file's code that are no docstrings."""
    parsed = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(parsed) if isinstance(node, documented)]
    lone = {id(line.value) for body in bodies for line in body if isinstance(line, ast.Expr)}
    for node in ast.walk(parsed):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in lone:
            yield node.value


@pytest.mark.parametrize(
    "command",
    ["info {}", "verify {}", "encode cat --model {}", "explain cat dog --model {}", "tune {}", "heads {} --corpus {}"],
)
def test_a_malformed_manifest_is_one_line_that_names_file_and_field(
    command: str, embedder: TaskArtifact, tmp_path: Path, run: Run
) -> None:
    artifact = shutil.copytree(embedder.artifact, tmp_path / "artifact")
    written = json.loads((artifact / MANIFEST).read_text())
    (artifact / MANIFEST).write_text(json.dumps({**written, "opset": "24"}))
    printed = run(*command.replace("{}", str(artifact)).split(), code=1)
    assert f"{artifact / MANIFEST}: malformed manifest: opset is '24': expected a whole number\n" in printed
    assert printed.count("\n") == 1


def test_it_says_what_an_artifact_is(tmp_path: Path, run: Run) -> None:
    artifact = write_fake_artifact(tmp_path / "fake")
    lines = dict(line.split(":", 1) for line in run("info", artifact).splitlines())
    assert {name: value.strip() for name, value in lines.items() if name != "files"} == {
        "model": "tests/fake",
        "source": "tests/fake",
        "task": "embedding",
        "output": "8 numbers",
        "network": "3 layers, 2, 3, 0 heads, hidden size 8",
        "reads": "up to 16 tokens",
        "engine": "onnxruntime",
        "precision": "fp32",
    }
    assert lines["files"].strip().startswith("explain.onnx, model.onnx, tokenizer.json (")
    assert Manifest.from_dict(json.loads(run("info", "--json", "--model", artifact))) == read_manifest(artifact)


def test_it_names_the_labels_of_a_classifier(classifier: TaskArtifact, run: Run) -> None:
    printed = run("info", classifier.artifact)
    said = ("task:       classification", "contradiction, entailment, neutral\n", "2 layers, 4 heads each, hidden")
    assert [words for words in said if words not in printed] == []


def test_a_whole_artifact(embedder: TaskArtifact, run: Run) -> None:
    said = f"{embedder.artifact}: 3 files as the manifest says, the graph loads\n"
    assert run("verify", embedder.artifact) == said


@pytest.mark.parametrize(
    ("command", "changed", "message"),
    [
        ("info", "", "there is no folder {}: make an artifact"),
        ("verify", "none", "{} holds no manifest.json: make an artifact"),
        ("verify", GRAPH, f"{{}}/{GRAPH} has SHA-256 "),
        ("verify", TOKENIZER, f"{{}}/{TOKENIZER} has SHA-256 "),
        ("verify", "all", f"{{}}/{GRAPH}"),  # a fake one: its hashes are right, its graph is none
    ],
)
def test_any_but_a_whole_artifact_is_one_line(
    command: str, changed: str, message: str, embedder: TaskArtifact, tmp_path: Path, run: Run
) -> None:
    directory = tmp_path / "artifact"
    if changed == "none":
        directory.mkdir()
    elif changed == "all":
        write_fake_artifact(directory)
    elif changed:
        shutil.copytree(embedder.artifact, directory)
        content = bytearray((directory / changed).read_bytes())
        content[len(content) // 2] ^= 1  # one bit
        (directory / changed).write_bytes(content)
    printed = run(command, directory, code=1)
    assert printed.startswith(f"polyhead {command}: {message.format(directory)}")
    assert printed.count("\n") == 1
