import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.lib.report import CoresUsed, Table, describe_machine, emit, format_cell, labels


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (12345.6, "12,346"),
        (99.94, "99.9"),
        (0.01234, "0.0123"),
        (1234, "1,234"),
        (True, "True"),
        ("a", "a"),
    ],
)
def test_cells_are_rounded_for_the_reader(value: object, shown: str) -> None:
    assert format_cell(value) == shown


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    one, other, third = (tmp_path / name for name in ("a/int8", "b/int8", "fp32"))
    assert labels([one, third]) == {one: "int8", third: "fp32"}
    assert labels([one, other, third]) == {one: str(one), other: str(other), third: "fp32"}
    assert labels([one, one]) == {one: "int8"}


def test_a_table_aligns_numbers_right_and_words_left() -> None:
    table = Table("rates", "what is fast", ("way", "per_s", "p50"))
    table.add(way="a", per_s=1234.5)
    table.add(way="longer", per_s=2.5, p50=1)
    assert table.lines() == ["what is fast", "way     per_s  p50", "a       1,234    -", "longer    2.5    1"]
    with pytest.raises(KeyError, match="rates: no column speed"):
        table.add(speed=1)


def test_the_last_line_is_json_with_rows_and_machine(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("rates", "what is fast", ("way", "per_s"))
    table.add(way="a", per_s=1234.56789)
    emit("test", [table], rounds=3)
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    assert result["tables"] == {"rates": [{"way": "a", "per_s": 1234.57}]}
    assert (result["benchmark"], result["rounds"]) == ("test", 3)
    assert result["machine"]["cores"] >= 1
    assert "what is fast" in lines


def test_the_machine_is_described_by_what_decides_speed() -> None:
    machine = describe_machine()
    assert {"cpu", "cores", "instructions", "versions", "cores_busy_elsewhere"} <= set(machine)
    assert "onnxruntime" in machine["versions"]


def test_work_of_others_is_told_from_our_own() -> None:
    began = CoresUsed.now()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    while time.process_time() % 0.4 > 0.02:  # and some work here
        pass
    after = CoresUsed.now()
    assert after.by_us - began.by_us >= 0.3
    assert after.by_all - began.by_all >= after.by_us - began.by_us - 0.1
    assert 0 <= began.elsewhere() <= (after.by_all - began.by_all) / (after.at - began.at)
