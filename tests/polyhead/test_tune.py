import asyncio
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from model.artifact import Artifact
from polyhead.cli import main
from polyhead.tune import (
    CONNECTIONS,
    Layout,
    Measurement,
    NotMeasured,
    layouts,
    least_latency,
    measure,
    most_throughput,
    natural_texts,
    report,
    served,
)
from tests.service.fake_engine import make_tokenizer, write_fake_artifact


def measured(layout: Layout, rate: float, latency: float) -> Measurement:
    return Measurement(layout, rate, 30 * rate, latency, 2 * latency, 0.1)


def test_shares_out_all_cores() -> None:
    assert layouts(1) == [Layout(1, 1, 1)]
    assert layouts(2) == [Layout(1, 2, 1), Layout(1, 1, 2), Layout(2, 1, 1)]
    assert len(layouts(64)) == 28
    assert {one.processes * one.workers * one.intra_op_threads for one in layouts(12)} == {12}
    assert len(set(layouts(12))) == len(layouts(12))


def test_recommends_the_best_of_each_kind() -> None:
    found = [measured(Layout(1, 4, 1), 900, 0.010), measured(Layout(1, 1, 4), 500, 0.004)]
    assert most_throughput(found) == Layout(1, 4, 1)
    assert least_latency(found) == Layout(1, 1, 4)


def test_more_processes_have_to_be_worth_it() -> None:
    one, two, four = (
        measured(Layout(count, 8 // count, 1), rate, 0.004) for count, rate in ((1, 985), (2, 1000), (4, 990))
    )
    assert most_throughput([four, two, one]) == one.layout
    assert least_latency([four, two, one]) == one.layout
    assert most_throughput([measured(one.layout, 960, 1), two]) == two.layout


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
    assert main(["tune", "--model", str(default_artifact), "--seconds", "1", "--cores", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "1 of 1: 1 processes, 1 workers, 1 threads\n"
    row = printed.out.splitlines()[1].split()
    assert row[:3] == ["1", "1", "1"]
    assert all(float(value) > 0 for value in row)
    assert os.sched_getaffinity(0) == cores


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="holds neither an artifact"), served(tmp_path, Layout(1, 1, 1)):
        pass


def test_says_in_one_line_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--model", str(tmp_path)]) == 1
    assert "holds no manifest.json" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(directory: Path) -> None:
        raise PermissionError(13, "Permission denied", str(directory))

    monkeypatch.setattr(Artifact, "open", refuse)
    assert main(["tune", "--model", "mine"]) == 1
    assert capsys.readouterr().err == "polyhead tune: [Errno 13] Permission denied: 'mine'\n"


@pytest.mark.parametrize(
    "flags", [*(["--seconds", seconds] for seconds in ("0", "nan", "inf")), ["--cores", "0"], ["--cores", "9999"]]
)
def test_refuses_a_wrong_command_line(tmp_path: Path, flags: list[str]) -> None:
    assert main(["tune", "--model", str(tmp_path), *flags]) == 2


def test_an_interruption_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polyhead.tune.measure_layout", interrupt)
    assert main(["tune", "--model", str(write_fake_artifact(tmp_path / "artifact"))]) == 130
    assert capsys.readouterr().err.endswith("threads\ninterrupted\n")


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    make_tokenizer().save(str(path))
    return path


def test_lengths_are_natural(vocabulary: Path) -> None:
    lengths = [text.tokens for text in natural_texts(vocabulary, 2000, longest=256)]
    assert 30 < sum(lengths) / len(lengths) < 36
    assert 150 < max(lengths) <= 256
    assert min(lengths) >= 3


class Answering:
    """A server that answers every request with one status, and counts texts and connections."""

    def __init__(self, status: str) -> None:
        self.texts: Counter[str] = Counter()
        self.connections = 0
        self._status = status

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            self.texts[json.loads(await reader.readexactly(length))["inputs"]] += 1
            writer.write(f"HTTP/1.1 {self._status}\r\nContent-Length: 2\r\n\r\n{{}}".encode())


def ask(answering: Answering, vocabulary: Path, seconds: float) -> tuple[int, int, float]:
    """Texts, requests that came alone, and the share of the client."""
    texts = natural_texts(vocabulary, 16, longest=64)

    async def run() -> tuple[int, int, float]:
        async with await asyncio.start_server(answering, "127.0.0.1") as server:
            alone, together = await measure(server.sockets[0].getsockname(), texts, seconds)
        return len(together.seconds), len(alone.seconds), together.client_share

    return asyncio.run(run())


def test_many_requests_are_under_way_and_each_is_counted(vocabulary: Path) -> None:
    answering = Answering("200 OK")
    together, alone, share = ask(answering, vocabulary, 0.1)
    assert together >= CONNECTIONS
    assert alone >= 1
    assert share > 0
    assert answering.connections == 2 * CONNECTIONS + 1
    assert sum(answering.texts.values()) >= together + alone + CONNECTIONS
    assert len(answering.texts) > 10


def test_an_answer_that_is_no_200_ends_the_measurement(vocabulary: Path) -> None:
    with pytest.raises(NotMeasured, match="answered 503: {}"):
        ask(Answering("503 Service Unavailable"), vocabulary, 0.1)
