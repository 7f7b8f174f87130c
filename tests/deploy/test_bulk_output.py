"""The folder of the result: what it was made with, who writes to it, what is done in it, and what goes. No Ray."""

import json
import os
import socket
import subprocess
import sys
import time
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.bulk.corpus import Source
from deploy.bulk.output import LOCK, SUMMARY, AnotherRun, Output
from tests.service.process import wait_until

RECORD = {"model": "m", "identity": "1", "dimensions": None}


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output((tmp_path / "output").as_uri())


def table(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "embedding": [[1.0]] * len(ids)})


def test_what_is_written_is_done_and_its_failures_are_known(output: Output, tmp_path: Path) -> None:
    assert output.failures("a-1-1") is None
    output.write("a-1-1", table(1, 2), failed=0)
    output.write("a-2-1", table(3), failed=1)
    assert (output.failures("a-1-1"), output.failures("a-2-1"), output.failures("a-3-1")) == (0, 1, None)
    assert (output.read("a-1-1").to_pylist(), output.count_rows()) == (table(1, 2).to_pylist(), 3)
    output.write_json(SUMMARY, {"failed_ids": [7, "a", date(2020, 1, 31), Decimal("1.5")]})
    assert json.loads((tmp_path / "output/_summary.json").read_text()) == {"failed_ids": [7, "a", "2020-01-31", "1.5"]}
    assert pq.read_table(tmp_path / "output").num_rows == 3  # and readers pass over all that is ours
    assert not list((tmp_path / "output/_partial").iterdir())
    ids, vectors = (pq.read_metadata(tmp_path / "output/a-1-1.parquet").row_group(0).column(place) for place in (0, 1))
    assert (ids.has_dictionary_page, vectors.has_dictionary_page) == (True, False)
    output.write("a-4-1", table(*range(10_000)), failed=0)  # in parts
    written = pq.read_metadata(tmp_path / "output/a-4-1.parquet")
    assert [written.row_group(part).num_rows for part in range(written.num_row_groups)] == [4096, 4096, 1808]


def test_chunks_that_a_file_no_longer_has_go_and_those_of_other_files_stay(output: Output) -> None:
    here, elsewhere = (Source("", name, "text", 1) for name in ("a.txt", "b.txt"))
    for prefix, ids in ((here.prefix, (1, 2)), (elsewhere.prefix, (3,))):
        output.write(f"{prefix}-1-1", table(*ids), failed=0)
    output.write(f"{here.prefix}-2-1", table(4), failed=0)
    assert output.sweep([here], {f"{here.prefix}-2-1"}) == (2, 1)
    assert output.count_rows() == 2


def test_an_output_is_of_one_network_and_one_choice(output: Output, tmp_path: Path) -> None:
    output.claim(RECORD)
    output.claim(RECORD)
    other = {**RECORD, "identity": "2"}  # of the same source, pruned
    with pytest.raises(AnotherRun, match=r"was begun with identity '1'; name another --output"):
        output.claim(other)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/x.parquet").touch()
    with pytest.raises(AnotherRun, match=r"holds x\.parquet, which no such run wrote; name another --output"):
        Output((tmp_path / "theirs").as_uri()).claim(RECORD)


def test_a_lock_keeps_others_out_and_is_renewed_though_it_was_not_written_once(
    output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[float] = []
    write = Output.write_json

    def fail_once(self: Output, name: str, content: dict[str, Any]) -> None:
        written.append(content["seen"])
        if len(written) == 2:
            raise OSError("no space left on device")
        write(self, name, content)

    monkeypatch.setattr(Output, "write_json", fail_once)
    monkeypatch.setattr("deploy.bulk.output.BEAT_SECONDS", 0.01)
    with output.locked():
        wait_until(lambda: len(written) > 3)
        seen = json.loads((tmp_path / "output" / LOCK).read_text())["seen"]
        held = rf"written by process {os.getpid()} on {socket.gethostname()}, since 20\d\d-"
        with pytest.raises(AnotherRun, match=held), Output(output.uri).locked():
            pass
    assert seen in written[2:]
    with output.locked():
        pass


def gone() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("holder", "is_held"),
    [
        ({"host": socket.gethostname(), "pid": gone(), "seen": 0}, False),  # killed here
        ({"host": socket.gethostname(), "pid": os.getpid(), "seen": -3600}, False),  # its number, used again
        ({"host": "elsewhere", "pid": 1, "seen": 0}, True),
        ({"host": "elsewhere", "pid": 1, "seen": -3600}, False),
    ],
)
def test_the_lock_of_a_run_that_was_killed_is_taken_over(
    holder: dict[str, Any], is_held: bool, output: Output, tmp_path: Path
) -> None:
    (tmp_path / "output/_partial").mkdir(parents=True)
    (tmp_path / "output/_partial/half").touch()
    lock = {"run": "1", "since": "2026-01-01", **holder, "seen": time.time() + holder["seen"]}
    (tmp_path / "output" / LOCK).write_text(json.dumps(lock))
    if is_held:
        with pytest.raises(AnotherRun, match="process 1 on elsewhere, since 2026-01-01"), output.locked():
            pass
    else:
        with output.locked():
            assert not (tmp_path / "output/_partial").exists()
        assert not (tmp_path / "output" / LOCK).exists()
