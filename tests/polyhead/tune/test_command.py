import os
from pathlib import Path

import pytest

from model.artifact import Artifact
from polyhead.tune.command import main, report
from polyhead.tune.layouts import Layout, Measurement
from polyhead.tune.server import ServerFailure, served
from tests.service.fake_engine import write_fake_artifact


def test_the_settings_to_copy_follow_the_table() -> None:
    printed = report(
        [
            Measurement(Layout(1, 4, 1), 30, 900, 0.010, 0.020, 0.1),
            Measurement(Layout(1, 1, 4), 20, 500, 0.004, 0.300, 0.1),
        ]
    )
    assert "for throughput: POLYHEAD_PROCESSES=1 POLYHEAD_WORKERS=4 POLYHEAD_INTRA_OP_THREADS=1\n" in printed
    assert "for latency: POLYHEAD_PROCESSES=1 POLYHEAD_WORKERS=1 POLYHEAD_INTRA_OP_THREADS=4\n" in printed
    assert "no core to spare" not in printed
    assert "no core to spare" in report([Measurement(Layout(1, 4, 1), 30, 900, 0.010, 0.020, 0.97)])


@pytest.mark.slow
def test_measures_an_artifact_over_http_whatever_else_the_environment_says(
    default_artifact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cores = os.sched_getaffinity(0)
    for name, value in {"API_KEYS": "secret", "PORT": "1", "UDS": "/nowhere/socket", "WORKERS": "7"}.items():
        monkeypatch.setenv(f"POLYHEAD_{name}", value)
    assert main(["--model", str(default_artifact), "--seconds", "1", "--cores", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "1 of 1: 1 processes, 1 workers, 1 threads\n"
    row = printed.out.splitlines()[1].split()
    assert row[:3] == ["1", "1", "1"]
    assert all(float(value) > 0 for value in row)
    assert os.sched_getaffinity(0) == cores


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerFailure, match="holds no manifest"), served(tmp_path, Layout(1, 1, 1)):
        pass


def test_says_in_one_line_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(tmp_path)]) == 1
    assert "holds no manifest.json" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(directory: Path) -> None:
        raise PermissionError(13, "Permission denied", str(directory))

    monkeypatch.setattr(Artifact, "open", refuse)
    assert main(["--model", "mine"]) == 1
    assert capsys.readouterr().err == "polyhead tune: [Errno 13] Permission denied: 'mine'\n"


@pytest.mark.parametrize(
    "flags", [*(["--seconds", seconds] for seconds in ("0", "nan", "inf")), ["--cores", "0"], ["--cores", "9999"]]
)
def test_refuses_a_wrong_command_line(tmp_path: Path, flags: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--model", str(tmp_path), *flags])
    assert caught.value.code == 2


def test_an_interruption_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polyhead.tune.command.measure_layout", interrupt)
    assert main(["--model", str(write_fake_artifact(tmp_path / "artifact"))]) == 130
    assert capsys.readouterr().err.endswith("threads\ninterrupted\n")
