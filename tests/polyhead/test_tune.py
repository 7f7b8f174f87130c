import asyncio
import json
import os
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from export.errors import SourceError
from model.artifact import OPENVINO, Artifact, Manifest, read_manifest, write_manifest
from polyhead import tune as tuning
from polyhead.models import TUNED, Wanted, cache_folder, tuned_for
from polyhead.tune import Layout, Measurement, NotMeasured, Rates
from tests.command import Run
from tests.service.fake_engine import make_tokenizer, write_fake_artifact

MODEL = Path("made")


def measured(layout: Layout, rate: float, latency: float, artifact: Path = MODEL) -> Measurement:
    return Measurement(artifact, layout, rates(50, latency), rates(rate, 0.1), 250.0)


def rates(texts: float, latency: float, client_share: float = 0.1) -> Rates:
    return Rates(texts, 30 * texts, [latency], client_share)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return read_manifest(write_fake_artifact(tmp_path / "artifact"))


def test_shares_out_all_cores() -> None:
    assert tuning.layouts(1) == [Layout(1, 1, 1)]
    assert tuning.layouts(2) == [Layout(1, 2, 1), Layout(1, 1, 2), Layout(2, 1, 1)]
    assert len(tuning.layouts(64)) == 28
    assert {one.processes * one.workers * one.intra_op_threads for one in tuning.layouts(12)} == {12}
    assert len(set(tuning.layouts(12))) == len(tuning.layouts(12))


def test_the_best_of_each_kind_is_recommended_and_more_processes_or_tokens_have_to_be_worth_it() -> None:
    found = [measured(Layout(1, 4, 1), 900, 0.010), measured(Layout(1, 1, 4), 500, 0.004)]
    assert tuning.most_throughput(found).layout == Layout(1, 4, 1)
    assert tuning.least_latency(found).layout == Layout(1, 1, 4)
    one, two, four = (measured(Layout(n, 8 // n, 1), rate, 0.004) for n, rate in ((1, 985), (2, 1000), (4, 990)))
    assert tuning.most_throughput([four, two, one]) == one
    assert tuning.least_latency([four, two, one]) == one
    assert tuning.most_throughput([measured(one.layout, 960, 1), two]) == two
    own, other = (measured(Layout(1, 2, 1, tokens), rate, 0.004) for tokens, rate in ((None, 980), (1024, 1000)))
    assert tuning.most_throughput([other, own]) == own
    assert tuning.least_latency([own, replace(other, alone=rates(500, 0.002))]) == own


def test_batch_sizes_are_tried_in_the_way_with_the_most_texts_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    rates = {None: 500, 256: 490, 1024: 900, 2048: 890}

    def measure_layout(artifact: Path, layout: Layout, *_: object) -> Measurement:
        return measured(layout, rates[layout.max_batch_tokens] / layout.intra_op_threads, 0.004, artifact)

    artifact = write_fake_artifact(tmp_path / "artifact")
    monkeypatch.setattr(tuning, "measure_layout", measure_layout)
    monkeypatch.setattr("service.machine.usable_cores", lambda: 2)
    flags = [word for tokens in ("256", "1024", "2048") for word in ("--max-batch-tokens", tokens)]
    printed = run("tune", artifact, "--cores", "2", *flags)
    steps = run.said.splitlines()
    assert steps[2] == "3 of 6: artifact, processes 2, workers 1, threads 1"
    assert steps[3:] == [
        f"{number} of 6: artifact, processes 1, workers 2, threads 1, batches of {tokens} tokens"
        for number, tokens in ((4, 256), (5, 1024), (6, 2048))
    ]
    rows = [line.split() for line in printed.splitlines()[1:7]]
    assert [row[5] for row in rows] == ["-", "-", "-", "256", "1024", "2048"]
    assert "the server's own size: POLYHEAD_MAX_BATCH_TOKENS, or 512, on a GPU 16384\n" in printed
    commands = printed.splitlines()[-2:]  # of requests that come alone the size is the server's own
    for said in ("POLYHEAD_MAX_BATCH_TOKENS=1024 polyhead serve", "MAX_BATCH"):
        assert [said in line for line in commands] == [True, False]


def test_the_table_says_what_each_form_gave_and_the_commands_to_copy_follow(manifest: Manifest) -> None:
    int8 = replace(manifest, precision="int8", parity={"quality": {"texts": 256, "cosine_mean": 0.99884}})
    bf16 = replace(
        manifest, precision="bf16", engine=OPENVINO, parity={"openvino": {"quality": {"cosine_mean": 0.99999}}}
    )
    manifests = {Path("a"): int8, Path("b"): bf16, Path("c"): manifest}
    printed = tuning.report(
        [
            measured(Layout(1, 4, 1), 900, 0.010, Path("a")),
            measured(Layout(1, 1, 4), 500, 0.004, Path("b")),
            replace(measured(Layout(1, 1, 4), 20, 0.009, Path("c")), memory=None),
        ],
        manifests,
    )
    rows = [line.split() for line in printed.splitlines()[1:4]]
    assert [(row[0], row[1], row[10], row[-2:]) for row in rows] == [
        ("int8", "onnxruntime", "250", ["cosine_mean", "0.9988"]),
        ("bf16", "openvino", "250", ["cosine_mean", "1.0000"]),
        ("fp32", "onnxruntime", "-", ["as", "float32"]),
    ]
    layout = "POLYHEAD_PROCESSES=1 POLYHEAD_WORKERS={} POLYHEAD_INTRA_OP_THREADS={} polyhead serve {}\n"
    assert f"for throughput: {layout.format(4, 1, 'a')}" in printed
    assert f"for latency: {layout.format(1, 4, 'b')}" in printed
    assert "no core to spare" not in printed
    busy = Measurement(Path("a"), Layout(1, 4, 1), rates(900, 0.010), rates(900, 0.020, client_share=0.97))
    assert "no core to spare" in tuning.report([busy], manifests)


@pytest.fixture
def forms_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Wanted]:
    """Exports that are fake artifacts, on a processor with bf16; int8 fails."""
    made: list[Wanted] = []

    def export(wanted: Wanted) -> Path:
        made.append(wanted)
        if wanted.precision == "int8":
            raise SourceError("cosine_mean is too low")
        path = write_fake_artifact(tmp_path / f"{wanted.precision}-{wanted.engine}")
        write_manifest(path, replace(read_manifest(path), precision=wanted.precision))
        return path

    monkeypatch.setenv("POLYHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "exported", export)
    monkeypatch.setattr(tuning, "find_spec", lambda _: object())
    monkeypatch.setattr(tuning, "vector_instructions", lambda: ("avx512_bf16",))
    return made


def test_the_choice_among_a_models_forms_is_kept_for_this_machine(
    forms_made: list[Wanted], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def measure_layout(artifact: Path, layout: Layout, *_: object) -> Measurement:
        return measured(layout, 900 if "bf16" in artifact.name else 500, 1 / layout.intra_op_threads, artifact)

    monkeypatch.setattr(tuning, "measure_layout", measure_layout)
    printed = run("tune", "owner/model", "--cores", "1", "--write", "throughput")
    assert [(one.precision, one.engine) for one in forms_made] == [
        *(("fp32", None), ("int8", None), ("fp32", OPENVINO), ("bf16", OPENVINO))
    ]
    assert "left out --precision int8: cosine_mean is too low" in run.said
    assert run.said.endswith("for throughput from now on, if it may use 1 core of this machine\n")
    assert len(printed.splitlines()) == 1 + 3 + 2
    monkeypatch.setattr("polyhead.models.usable_cores", lambda: 2)
    assert tuned_for(Path("owner/model")) is None
    monkeypatch.setattr("polyhead.models.usable_cores", lambda: 1)
    tuned = tuned_for(Path("owner/model"))
    assert tuned is not None
    assert (tuned.precision, tuned.layout) == ("bf16", {"processes": 1, "workers": 1, "intra_op_threads": 1})
    assert tuned_for(Path("owner/other")) is None
    (record,) = cache_folder().glob(f"{TUNED}/*.json")
    kept = record.read_text()
    named = ("model", "processor", "cores", "precision", "engine", "processes", "workers", "intra_op_threads")
    assert list(json.loads(kept)) == [*named, "max_batch_tokens"], "what was kept once is read by later versions"
    for unreadable in ("", json.dumps({**json.loads(kept), "of a later version": 1})):
        record.write_text(unreadable)
        assert tuned_for(Path("owner/model")) is None
    record.write_text(kept)
    monkeypatch.setattr("polyhead.models.processor_name", lambda: "another one")
    assert tuned_for(Path("owner/model")) is None


@pytest.mark.slow
def test_measures_an_artifact_over_http_whatever_else_the_environment_says(
    default_artifact: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    cores = os.sched_getaffinity(0)
    for name, value in {"API_KEYS": "secret", "PORT": "1", "UDS": "/nowhere/socket", "WORKERS": "7"}.items():
        monkeypatch.setenv(f"POLYHEAD_{name}", value)
    printed = run("tune", "--model", default_artifact, "--seconds", "1", "--cores", "1")
    assert run.said == f"1 of 1: {default_artifact.name}, processes 1, workers 1, threads 1\n"
    row = printed.splitlines()[1].split()
    assert row[:6] == ["fp32", "onnxruntime", "1", "1", "1", "-"]
    assert all(float(value) > 0 for value in row[6:11])
    assert row[11:] == ["as", "float32"]
    assert os.sched_getaffinity(0) == cores


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="holds neither an artifact"), tuning.served(tmp_path, Layout(1, 1, 1)):
        pass


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, run: Run) -> None:
    path = write_fake_artifact(tmp_path / "mine")
    with patch.object(Artifact, "open", side_effect=PermissionError(13, "Permission denied", str(path))):
        said = run("tune", "--model", path, code=1)
    assert said == f"polyhead tune: [Errno 13] Permission denied: '{path}'\n"


@pytest.mark.parametrize("flags", ["--seconds=-1", "--cores=0", "--cores=9999", "--max-batch-tokens=0"])
def test_refuses_a_wrong_command_line(tmp_path: Path, flags: str, run: Run) -> None:
    run("tune", "--model", tmp_path, flags, code=2)


async def ask(status: str, vocabulary: Path) -> tuple[Rates, Rates, Counter[str], int]:
    """What a server that gives every request this answer is measured at, the texts it saw, and its connections.

    Without a status it hangs up.
    """
    make_tokenizer().save(str(vocabulary))
    seen: Counter[str] = Counter()
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):  # until the client is gone
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                seen[json.loads(await reader.readexactly(length))["inputs"]] += 1
                if not status:
                    return
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}".encode())

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        texts = tuning.natural_texts(vocabulary, 16, longest=64)
        alone, together = await tuning.measure(server.sockets[0].getsockname(), texts, 0.1)
    return alone, together, seen, connections


async def test_many_requests_are_under_way_and_each_is_counted(tmp_path: Path) -> None:
    alone, together, seen, connections = await ask("200 OK", tmp_path / "tokenizer.json")
    assert len(together.seconds) >= tuning.CONNECTIONS
    assert len(alone.seconds) >= 1
    assert together.client_share > 0
    assert connections == 2 * tuning.CONNECTIONS + 1
    assert seen.total() >= len(together.seconds) + len(alone.seconds) + tuning.CONNECTIONS
    assert len(seen) > 10


@pytest.mark.parametrize(
    ("status", "message"),
    [("", "the server ended while it was measured"), ("503 Service Unavailable", "answered 503: {}")],
)
async def test_a_server_that_ends_or_refuses_ends_the_measurement(status: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match=message):
        await ask(status, tmp_path / "tokenizer.json")
