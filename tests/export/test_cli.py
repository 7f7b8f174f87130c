import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from transformers import AutoModelForSequenceClassification

import export.exporter
import export.original
from export.cli import main
from model.artifact import EXPLAIN_GRAPH, Artifact
from tests.family_models import NAMED, draw, save
from tests.task_artifacts import quick_export


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
    assert "(allowed 1e-05, more where PyTorch's own rounding is more)\n" in printed
    assert f"wrote {output}: mine, embedding, fp32, 3 fused attention nodes\n" in printed
    assert printed.endswith(f"serve it: python -m service --model {output}\n")


def test_text_to_calibrate_what_has_no_ranges_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = NAMED["bert"]
    folder = save(draw(model, auto=AutoModelForSequenceClassification), model, tmp_path / "bert")
    assert main([str(folder), "--output", str(tmp_path / "x"), "--calibration", "texts"]) == 1
    assert "export failed: --calibration: of this task nothing is calibrated but" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "error", "said"),
    [
        ([], MemoryError("no memory\nfor this\n"), "MemoryError: no memory for this (--debug shows where)"),
        (["--debug"], OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_what_libraries_raise_ends_in_one_line(
    flags: list[str],
    error: Exception,
    said: str,
    bert_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(export.exporter, "trace", Mock(side_effect=error))
    assert main([str(bert_folder), "--output", str(tmp_path / "x"), *flags]) == 1
    printed = capsys.readouterr().err
    assert printed.splitlines()[-1] == f"export failed: {said}"
    assert ("Traceback" in printed) == bool(flags)
    assert not (tmp_path / "x").exists()


def test_an_interruption_is_one_line(
    bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export.exporter, "trace", Mock(side_effect=KeyboardInterrupt))
    assert main([str(bert_folder), "--output", str(tmp_path / "made" / "deep" / "x")]) == 130
    assert "nothing was left behind" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("given", [[], ["--max-length", "20"]])
def test_a_stated_length_beyond_the_positions_is_said_unless_another_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    model = NAMED["nomic"]
    folder = save(draw(model), model, tmp_path / "nomic")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 8192}')
    monkeypatch.setattr(export.exporter, "trace", Mock(side_effect=KeyboardInterrupt))
    assert main([str(folder), "--output", str(tmp_path / "x"), *given]) == 130
    said = "texts are cut at 40 tokens, as far as positions are reproduced; nomic states 8192\n"
    assert (said in capsys.readouterr().err) == (not given)


def test_sigterm_leaves_nothing_behind(
    bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receive: Callable[[int], None]
) -> None:
    monkeypatch.setattr(export.exporter, "trace", lambda _: receive(signal.SIGTERM))
    output = tmp_path / "made"
    output.mkdir()
    assert main([str(bert_folder), "--output", str(output / "x")]) == 130
    assert not list(output.iterdir())
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_wrong_command_line_is_exit_code_2() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--output", "x", "--precision", "fp4"])
    assert caught.value.code == 2


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
