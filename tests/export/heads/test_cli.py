import html.parser
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from starlette.testclient import TestClient

from export.checkpoint import Checkpoint, read_checkpoint
from export.cli import main
from export.exporter import export_artifact
from export.heads.subject import find_subject
from export.sources import Folder
from export.weights import read_weights
from model.artifact import HEADS, HEADS_PAGE, Artifact
from service.app import create_app
from service.runner import Runner
from service.services import Readiness
from service.settings import read_settings
from tests.export.conftest import write_artifact


class Checker(html.parser.HTMLParser):
    """Notes what a page loads, and whether its elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object")
        self.loaded += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("rect", "line", "circle", "path", "image")
        self.loaded += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def bert(bert_folder: Path) -> Checkpoint:
    return read_checkpoint(Folder(bert_folder, "bert <&> one"))


@pytest.fixture
def artifact(bert: Checkpoint, tmp_path: Path) -> Path:
    return write_artifact(tmp_path / "artifact", bert)


@pytest.mark.slow
def test_reports_on_an_artifact_which_then_serves_it(
    bert_folder: Path, bert: Checkpoint, corpus: Path, parses_file: Path, pairs_file: Path, tmp_path: Path, capsys: Any
) -> None:
    artifact = tmp_path / "served"
    export_artifact(bert, artifact, explains=False)
    files = ["--corpus", str(corpus), "--conllu", str(parses_file), "--pairs", str(pairs_file)]
    options = ["--importance-texts", "8", "--weights", str(bert_folder)]
    assert main(["heads", str(artifact), *files, *options]) == 0
    printed = capsys.readouterr().err
    assert f"wrote {artifact / HEADS} and {artifact / HEADS_PAGE}: 12 heads over 60 texts\n" in printed
    assert {HEADS, HEADS_PAGE} <= set(Artifact.open(artifact).manifest.files)
    report = json.loads((artifact / HEADS).read_bytes())
    assert report["model"] == "bert <&> one"

    settings, readiness = read_settings(["--model", str(artifact), "--workers", "1"]), Readiness()
    app, services = create_app(settings, readiness)
    engine = Runner.load(artifact, settings)
    services.models.start(services.model, engine)
    readiness.start()
    answer = TestClient(app).get("/heads")
    engine.close(5)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == report

    page = (artifact / HEADS_PAGE).read_text()
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert all(source.startswith("data:") for source in checker.loaded)
    assert not re.search(r"https?://", page)
    assert "Heads of bert &lt;&amp;&gt; one" in page
    assert page.count("<figure>") > 15
    assert page.count('text-anchor="middle">0</text>') == page.count('text-anchor="end">0</text>') > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{artifact}", "--corpus", "{corpus}"], "was made from bert <&> one, a folder: its weights are needed"),
        (["{folder}", "--corpus", "{corpus}"], "is no artifact to write the report into"),
        (["{folder}", "--corpus", "{corpus}", "--weights", "{folder}"], "names the weights of an artifact"),
        (["{artifact}", "--corpus", "{corpus}", "--revision", "v1"], "is of a model on the hub, and {artifact} is an"),
        (["{folder}", "--corpus", "./none.txt", "--output", "{out}"], "none.txt cannot be read: No such file"),
        (["{folder}", "--corpus", "{corpus}", "--texts", "3", "--output", "{out}"], "3 of 3 texts drawn hold a token"),
        (["{folder}", "--corpus", "{corpus}", "--pairs", "{corpus}", "--output", "{out}"], "expected text,text,rating"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(
    bert_folder: Path, artifact: Path, corpus: Path, tmp_path: Path, arguments: list[str], message: str, capsys: Any
) -> None:
    before = {path.name: path.read_bytes() for path in artifact.iterdir()}
    places = {"artifact": artifact, "folder": bert_folder, "corpus": corpus, "out": tmp_path / "out"}
    assert main(["heads", *(argument.format(**places) for argument in arguments)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("head report failed: ")
    assert message.format(**places) in printed
    assert printed.count("\n") == 1
    assert {path.name: path.read_bytes() for path in artifact.iterdir()} == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("choice", [{"pooling": "cls"}, {"task": "embedding"}], ids=str)
def test_an_artifacts_weights_are_read_once_with_the_choices_of_its_export(
    bert_folder: Path, tmp_path: Path, choice: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    described = json.loads((bert_folder / "config.json").read_bytes())
    kind = "BertForSequenceClassification" if "task" in choice else "BertModel"
    (bert_folder / "config.json").write_text(json.dumps({**described, "architectures": [kind]}))
    exported = read_checkpoint(Folder(bert_folder, "bert"), **choice)
    artifact = write_artifact(tmp_path / "artifact", exported)
    reads = Mock(wraps=read_weights)
    monkeypatch.setattr("export.checkpoint.read_weights", reads)
    found = find_subject(str(artifact), weights=str(bert_folder))
    assert found.checkpoint.encoder.config == exported.encoder.config
    reads.assert_called_once_with(bert_folder, allows_pickles=False)


def test_reports_on_a_folder_of_pickles_where_that_is_allowed(
    bert_folder: Path, corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    torch.save(load_file(bert_folder / "model.safetensors"), bert_folder / "pytorch_model.bin")
    (bert_folder / "model.safetensors").unlink()
    output = tmp_path / "report"
    command = ["heads", str(bert_folder), "--corpus", str(corpus), "--output", str(output), "--texts", "10"]
    assert main(command) == 1
    assert "--allow-pickled-weights reads it" in capsys.readouterr().err
    assert main([*command, "--allow-pickled-weights", "--importance-texts", "2"]) == 0
    assert {path.name for path in output.iterdir()} == {HEADS, HEADS_PAGE}
    report = json.loads((output / HEADS).read_bytes())
    assert (report["relations"], report["importance"]["pairs"], len(report["heads"])) == (None, None, 12)


def test_other_weights_are_refused(bert_folder: Path, artifact: Path, corpus: Path, capsys: Any) -> None:
    weights = bert_folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert main(["heads", str(artifact), "--corpus", str(corpus), "--weights", str(bert_folder)]) == 1
    assert "the artifact was made from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        *((f"--texts={count}", f"expected a whole number above 0, got {count!r}") for count in ("0", "-1", "some")),
        ("--sentences=9", "--sentences goes with --conllu"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(option: str, message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["heads", "x", "--corpus", "y", option])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
