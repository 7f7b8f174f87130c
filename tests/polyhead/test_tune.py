from pathlib import Path

import pytest

from model.artifact import Artifact
from polyhead.tune import Layout, Measurement, layouts, main, natural_jobs, report
from tests.service.fake_engine import write_fake_artifact


def test_shares_out_all_cores() -> None:
    assert layouts(1) == [Layout(1, 1)]
    assert layouts(2) == [Layout(2, 1), Layout(1, 2)]
    assert layouts(6) == [Layout(6, 1), Layout(3, 2), Layout(2, 3), Layout(1, 6), Layout(5, 1)]


def test_lengths_are_natural() -> None:
    lengths = [len(job.input_ids) for job in natural_jobs(2000, longest=256, vocab_size=100)]
    assert 30 < sum(lengths) / len(lengths) < 36
    assert max(lengths) > 150
    assert min(lengths) >= 3


def test_recommends_the_best_of_each_kind() -> None:
    printed = report([Measurement(Layout(4, 1), 900, 30, 0.010, 0.020), Measurement(Layout(1, 4), 500, 20, 0.004, 0.3)])
    assert "for throughput: POLYHEAD_WORKERS=4 POLYHEAD_INTRA_OP_THREADS=1" in printed
    assert "for latency: POLYHEAD_WORKERS=1 POLYHEAD_INTRA_OP_THREADS=4" in printed


def test_measures_an_artifact(default_artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(default_artifact), "--seconds", "0.4", "--cores", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("measuring") == 2
    rows = [line.split() for line in printed.out.splitlines()[1:3]]
    assert [row[:2] for row in rows] == [["2", "1"], ["1", "2"]]
    assert all(float(value) > 0 for row in rows for value in row)


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


@pytest.mark.parametrize(
    ("variable", "value", "status", "said"),
    [("POLYHEAD_PORT", "abc", 2, "POLYHEAD_PORT"), ("POLYHEAD_PROVIDER", "cuda", 1, "CUDA")],
)
def test_settings_come_from_the_environment(
    default_artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    status: int,
    said: str,
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["--model", str(default_artifact)]) == status
    assert said in capsys.readouterr().err


def test_an_interruption_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polyhead.tune.measure", interrupt)
    assert main(["--model", str(write_fake_artifact(tmp_path / "artifact"))]) == 130
    assert capsys.readouterr().err.endswith("each\ninterrupted\n")
