"""From a folder to an artifact, by the function and by the command."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import onnx_ir
import pytest
from transformers import AutoModelForSequenceClassification

import export.exporter
import export.original
from export.checkpoint import Checkpoint
from export.cli import main
from export.errors import OutputExists, ParityError
from export.exporter import export_artifact, require_free
from model.artifact import EXPLAIN_GRAPH, GRAPH, GRAPH_WEIGHTS, MANIFEST, TOKENIZER, Artifact
from model.encoder import Encoder
from tests.family_models import NAMED, draw, save
from tests.networks import ONE_LAYER, draw_weights
from tests.task_artifacts import quick_export


@pytest.fixture
def traced_before(tiny_graph: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Exports of the tiny network take a graph that was traced before, and verify one batch: the tests look further."""
    monkeypatch.setattr(export.exporter, "trace", lambda _: onnx_ir.load(tiny_graph))
    with quick_export():
        yield


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """An artifact that has the name already."""
    output = tmp_path / "tiny"
    output.mkdir()
    (output / MANIFEST).write_text("{}")
    (output / "old").write_text("old")
    return output


def test_writes_an_artifact_that_opens(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "tiny"
    manifest = export_artifact(replace(tiny_checkpoint, encoder=draw_weights(Encoder(ONE_LAYER))), output)
    assert {path.name for path in output.iterdir()} == {GRAPH, EXPLAIN_GRAPH, TOKENIZER, MANIFEST}
    artifact = Artifact.open(output)
    assert artifact.manifest == manifest
    assert manifest.config == ONE_LAYER
    assert manifest.pruning is None
    assert manifest.fused_attention == {"ai.onnx.Attention": 1}
    assert manifest.parity["attentions"] < 1e-5
    assert manifest.parity["explain"]["parts"] < 1e-5
    assert manifest.versions["torch"].startswith("2.13.0")
    assert [path.name for path in output.parent.iterdir()] == ["tiny"]


@pytest.mark.usefixtures("traced_before")
def test_large_weights_stand_beside_the_graph(
    tiny_checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export.exporter, "EXTERNAL_WEIGHTS_BYTES", 1000)
    manifest = export_artifact(tiny_checkpoint, tmp_path / "tiny", explains=False)
    assert GRAPH_WEIGHTS in manifest.files
    assert manifest.files[GRAPH_WEIGHTS].size > manifest.files[GRAPH].size / 4


@pytest.mark.usefixtures("traced_before")
def test_replaces_it_when_forced(tiny_checkpoint: Checkpoint, older: Path) -> None:
    export_artifact(tiny_checkpoint, older, force=True, explains=False)
    assert json.loads((older / MANIFEST).read_bytes())["model"] == "tiny"
    assert [path.name for path in older.parent.iterdir()] == ["tiny"]
    assert not (older / "old").exists()


def test_replaces_only_an_artifact_or_an_empty_directory(tmp_path: Path) -> None:
    require_free(tmp_path, force=True)
    with pytest.raises(OutputExists, match="--force"):
        require_free(tmp_path, force=False)
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years")
    (nowhere := tmp_path / "nowhere").symlink_to("nowhere")
    for output in (tmp_path, thesis, nowhere):
        with pytest.raises(OutputExists, match="is no artifact .*: name another directory"):
            require_free(output, force=True)


@pytest.mark.parametrize(("force", "name"), [(False, MANIFEST), (True, "thesis.txt")])
def test_what_gets_the_name_during_the_export_stays(
    tiny_checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool, name: str
) -> None:
    output = tmp_path / "tiny"

    def meanwhile(*_: Any, **__: Any) -> None:
        output.mkdir()
        (output / name).write_text("another's")

    monkeypatch.setattr(export.exporter, "_make", meanwhile)
    with pytest.raises(OutputExists):
        export_artifact(tiny_checkpoint, output, force=force)
    assert (output / name).read_text() == "another's"
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_place_that_cannot_be_written_to_is_said_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    require_free(tmp_path / "deep" / "output", force=False)
    with pytest.raises(PermissionError, match=f"{file} is no directory that can be written to"):
        require_free(file / "deep" / "output", force=False)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=f"{tmp_path} is no directory that can be written to"):
        require_free(tmp_path / "output", force=False)


@pytest.mark.usefixtures("traced_before")
@pytest.mark.parametrize(
    "failure", [ParityError("no"), KeyboardInterrupt(), None], ids=["failure", "interruption", "while names change"]
)
def test_an_export_that_ends_early_leaves_the_old_artifact_and_nothing_else(
    tiny_checkpoint: Checkpoint, older: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException | None
) -> None:
    rename = Path.rename

    def interrupt(path: Path, target: Path) -> Path:
        if path.name == older.name and target == older:
            raise KeyboardInterrupt
        return rename(path, target)

    if failure is None:
        monkeypatch.setattr(Path, "rename", interrupt)
    else:
        monkeypatch.setattr("export.exporter.verify", Mock(side_effect=failure))
    with pytest.raises(type(failure) if failure else KeyboardInterrupt):
        export_artifact(tiny_checkpoint, older, force=True, explains=False)
    assert [path.name for path in older.parent.iterdir()] == ["tiny"]
    assert (older / "old").read_text() == "old"


@pytest.fixture(autouse=True)
def not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/export/test_original.py` tests the comparison with the original, which takes seconds."""
    monkeypatch.setattr(export.original, "is_installed", lambda: False)


def test_exports_a_folder(bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, texts = tmp_path / "artifact", tmp_path / "texts"
    texts.write_text("the cat sat on the mat\n" * 16)
    flags = ["--name", "mine", "--no-explain", "--calibration", str(texts)]
    with quick_export():
        assert main([str(bert_folder), "--output", str(output), *flags]) == 0
    manifest = Artifact.open(output).manifest
    assert manifest.model == "mine"
    assert manifest.vector_ranges is not None
    assert manifest.vector_ranges.minimum == pytest.approx(manifest.vector_ranges.maximum, abs=1e-6)  # of one text
    assert EXPLAIN_GRAPH not in manifest.files
    printed = capsys.readouterr().err
    assert "verifying" in printed
    assert "(allowed 1e-05)\n" in printed
    assert f"wrote {output}: mine, embedding, fp32, 3 fused attention nodes\n" in printed
    assert printed.endswith(f"serve it: python -m service --model {output}\n")


def test_text_to_calibrate_what_has_no_ranges_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = NAMED["bert"]
    folder = save(draw(model, auto=AutoModelForSequenceClassification), model, tmp_path / "bert")
    texts = tmp_path / "texts.txt"
    texts.write_text("a cat\n" * 16)
    assert main([str(folder), "--output", str(tmp_path / "x"), "--calibration", str(texts)]) == 1
    assert "export failed: --calibration: of this task nothing is calibrated but" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--calibration"], ["--prune-heads", "0.5", "--pairs"]])
def test_a_file_that_cannot_be_used_is_said_before_a_model_is_looked_for(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["./no-model", "--output", str(tmp_path / "x"), *flags, "missing"]) == 1
    assert capsys.readouterr().err.startswith("export failed: missing cannot be read")


Fail = Callable[..., tuple[int, str]]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fail:
    """Runs the command to where the graph is traced, which fails; its exit code and what it prints."""

    def run(folder: Path, output: Path, error: Any, *flags: str) -> tuple[int, str]:
        monkeypatch.setattr(export.exporter, "trace", Mock(side_effect=error))
        return main([str(folder), "--output", str(output), *flags]), capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("flags", "error", "said"),
    [
        ([], MemoryError("no memory\nfor this\n"), "MemoryError: no memory for this (--debug shows where)"),
        (["--debug"], OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_what_libraries_raise_ends_in_one_line(
    flags: list[str], error: Exception, said: str, bert_folder: Path, tmp_path: Path, fail: Fail
) -> None:
    code, printed = fail(bert_folder, tmp_path / "x", error, *flags)
    assert (code, printed.splitlines()[-1]) == (1, f"export failed: {said}")
    assert ("Traceback" in printed) == bool(flags)
    assert not (tmp_path / "x").exists()


WHILE_NUMPY_IS_IMPORTED = """
import sys
class CtrlC:
    def find_spec(self, name, *_):
        if name == "numpy.linalg":
            sys.meta_path.remove(self)
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
from export.cli import main
sys.exit(main(["--output", sys.argv[1]]))
"""


def test_an_interruption_while_modules_are_imported_ends_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WHILE_NUMPY_IS_IMPORTED, str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    assert (done.returncode, done.stderr) == (130, "export interrupted: nothing was left behind\n")


@pytest.mark.parametrize("is_signal", [False, True])
def test_an_interruption_is_one_line_and_leaves_nothing_behind(
    bert_folder: Path, tmp_path: Path, fail: Fail, receive: Callable[[int], None], *, is_signal: bool
) -> None:
    output = tmp_path / "made"
    if is_signal:
        output.mkdir()
    error = (lambda _: receive(signal.SIGTERM)) if is_signal else KeyboardInterrupt
    code, printed = fail(bert_folder, output / "deep" / "x", error)
    assert (code, "nothing was left behind" in printed) == (130, True)
    assert output.exists() == is_signal
    assert not list(tmp_path.glob("made/*"))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("given", [[], ["--max-length", "20"]])
def test_a_stated_length_beyond_the_positions_is_said_unless_another_is_asked_for(
    tmp_path: Path, fail: Fail, given: list[str]
) -> None:
    folder = save(draw(NAMED["nomic"]), NAMED["nomic"], tmp_path / "nomic")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 8192}')
    code, printed = fail(folder, tmp_path / "x", KeyboardInterrupt, *given)
    said = "texts are cut at 40 tokens, as far as positions are reproduced; nomic states 8192\n"
    assert (code, said in printed) == (130, not given)


EXPORT = ["--output", "x"]
HEADS = ["heads", "x", "--corpus", "y"]


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        (EXPORT, ["--precision", "fp4"], "invalid choice: 'fp4'"),
        (EXPORT, ["--prune-heads", "0"], "expected a share above 0 and at most 1, got '0'"),
        (EXPORT, ["--prune-heads", "some"], "--prune-heads: expected a share above 0 and at most 1, got 'some'"),
        (EXPORT, ["--prune-to-quality", "half"], "--prune-to-quality: expected points from 0 to 100, got 'half'"),
        (EXPORT, ["--prune-heads", "30"], "expected a share above 0 and at most 1"),
        (EXPORT, ["--prune-to-quality", "-1"], "expected points from 0 to 100"),
        (EXPORT, ["--prune-heads", "0.3", "--prune-to-quality", "1"], "not allowed with"),
        (EXPORT, ["--pairs", "x.csv"], "--pairs goes with --prune-heads or --prune-to-quality"),
        (EXPORT, ["--no-curve"], "--no-curve goes with"),
        (EXPORT, ["--prune-heads", "0.3", "--prune-by", "loss_gradient"], "needs --pairs"),
        *((HEADS, [f"--texts={count}"], f"above 0, got {count!r}") for count in ("0", "-1", "some")),
        (HEADS, ["--sentences=9"], "--sentences goes with --conllu"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(command: list[str], flags: list[str], message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command, *flags])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


CODE = """
import contextlib, io, os, sys
from {module} import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["--help"])
print(os.environ["OMP_WAIT_POLICY"], "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("module", "chosen", "expected"),
    [("export.cli", "", "passive"), ("export.heads.cli", "", "passive"), ("export.cli", "active", "active")],
)
def test_threads_are_told_to_sleep_before_torch_is_imported(module: str, chosen: str, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if chosen:
        environment["OMP_WAIT_POLICY"] = chosen
    command = [sys.executable, "-c", CODE.format(module=module)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603 - our own
    assert done.stdout == f"{expected} False\n"
