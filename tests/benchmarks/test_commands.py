"""Every question: what it does on a real artifact, with settings too small for figures, and if it cannot measure."""

import importlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.lib.command import program
from export.checkpoint import read_checkpoint
from export.sources import Folder
from tests.planted import draw_texts, write_pairs

exhaustive = pytest.mark.exhaustive

# What each question requires besides its options: "DIR" stands for an artifact, "CSV" for a file.
REQUIRED = {
    "attention explaining": ("DIR",),
    "attention faithfulness": ("DIR", "--pairs", "DIR/pairs.csv"),
    "gpu rates": ("DIR",),
    "http versions": ("DIR", "DIR", "--model", "DIR"),
    "inputs network": ("minilm-l6", "DIR"),
    "inputs reranker": ("minilm-l6", "DIR"),
    "peers encode": ("DIR",),
    "peers int8": ("DIR",),
    "peers labels": ("DIR", "DIR"),
    "peers rerank": ("DIR",),
    "quality artifacts": ("DIR", "--pairs", "CSV"),
    "quality classifiers": ("DIR", "--packages", "DIR"),
    "quality formats": ("DIR", "--pairs", "CSV", "--definitions", "CSV"),
    "quality shapes": ("DIR", "--texts", "CSV", "--pairs", "CSV", "--definitions", "CSV"),
    "service startup": ("DIR",),
    "attention cost": ("--model", "DIR"),
    **{f"http {name}": ("--model", "DIR") for name in ("closed", "cost", "open", "storm")},
    **{f"service {name}": ("--model", "DIR") for name in ("processes", "replicas", "soak")},
}
NUMBERS = [
    *[(name, "--seconds", "0") for name in ("http closed", "peers encode")],
    ("http closed", "--texts-per-request", "0"),
    ("http open", "--rate", "inf"),
    ("http open", "--share", "-1"),
    ("http open", "--warmup", "nan"),
    ("http open", "--seed", "-1"),
    ("http cost", "--connections", "0"),
    ("service soak", "--minutes", "0.05"),
    ("service soak", "--interval", "0"),
    ("service replicas", "--drain-delay", "-1"),
    ("service replicas", "--rate", "1"),
    ("service startup", "--rounds", "0"),
    ("service startup", "--requests", "0"),
    ("service startup", "--set", "POLYHEAD_WORKERS"),
    ("http closed", "--url", "localhost:8000"),
    ("attention cost", "--lengths", "0"),
    ("attention claims", "--runs", "0"),
    ("attention claims", "--lengths", "512"),
    ("gpu rates", "--product", "0"),
    ("quality artifacts", "--seconds", "-2"),
    ("peers encode", "--plot", "no/such/folder.svg"),
]


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["__main__.py", *name.split(), *arguments])
    with pytest.raises(SystemExit) as end:
        benchmarks.main()
    return end.value.code


def words(name: str, folder: Path) -> list[str]:
    places = {"DIR": str(folder), "CSV": str(folder / "no.csv")}
    return [places.get(word, word) for word in REQUIRED.get(name, ())]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_folder_that_is_no_artifact_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, *words(name, tmp_path), monkeypatch=monkeypatch) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"python -m benchmarks {name}: ")
    assert str(tmp_path) in line


@pytest.mark.parametrize(("name", "option", "value"), NUMBERS)
def test_an_argument_without_sense_is_named(
    name: str,
    option: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(name, *words(name, tmp_path), option, value, monkeypatch=monkeypatch) == 2
    assert option in capsys.readouterr().err.splitlines()[-1]


def question_of(name: str) -> str:
    """The first line of a question's docstring."""
    module, _, function = benchmarks.QUESTIONS[name].partition(":")
    found = importlib.import_module(f"benchmarks.{module}")
    described = found if function == "main" else getattr(found, function)
    return (described.__doc__ or "none").splitlines()[0]


@pytest.mark.parametrize("name", benchmarks.QUESTIONS)
def test_help_asks_the_question_and_says_how_long_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, "--help", monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m benchmarks {name} ")
    assert question_of(name) in shown
    assert "\nTakes " in shown


@pytest.mark.parametrize("command", benchmarks.COMMANDS)
def test_help_of_a_command_lists_its_questions(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # no line is broken
    assert run(command, "--help", monkeypatch=monkeypatch) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name in (name for name in benchmarks.QUESTIONS if name.startswith(f"{command} ")):
        assert f"{name.split()[1]} {question_of(name)}" in shown


@pytest.mark.parametrize("name", ["gpu", "gpu nothing"])
def test_a_command_without_a_question_it_knows_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("python -m benchmarks gpu: ")


def test_every_question_can_be_asked() -> None:
    files = (Path(benchmarks.__file__).parent).rglob("*.py")
    assert sum(path.read_text().count("\n@program\n") for path in files) == len(benchmarks.QUESTIONS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_what_was_started(
    number: int, receive: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    ended = []

    @program
    def main() -> None:
        try:
            receive(number)
        finally:
            ended.append(True)

    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, ended) == (130, [True])
    assert capsys.readouterr().err.endswith(": interrupted\n")


ROOT = Path(__file__).parents[2]


def run_script(name: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", *name.split(), *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)  # noqa: S603 - our own scripts
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["benchmark"] == name
    assert result["machine"]["cores"] >= 1
    tables: dict[str, Any] = result["tables"]
    return tables


def rates(rows: list[dict[str, Any]]) -> list[float]:
    return [row["tokens_per_s"] for row in rows]


@exhaustive
def test_http_closed(default_artifact: Path) -> None:
    options = ("--rounds", 1, "--texts", 16, "--texts-per-request", 1, 4, "--seconds", 0.5, "--connections", 2)
    tables = run_script("http closed", "--model", default_artifact, *options)
    assert min(rates(tables["rates"])) > 0
    assert [row["of"] for row in tables["service_over_engine"]] == ["HTTP, 1 text a request", "HTTP, 4 texts a request"]


@exhaustive
def test_http_versions(default_artifact: Path) -> None:
    options = ("--rounds", 1, "--texts", 16, "--texts-per-request", 2, "--seconds", 0.5, "--connections", 2)
    tables = run_script("http versions", ROOT, ROOT, "--model", default_artifact, *options)
    assert min(rates(tables["rates"])) > 0
    (ratio,) = tables["ratios"]
    assert ratio["of"] == f"2: {ROOT}, HTTP, 2 texts a request"
    assert ratio["over"] == f"1: {ROOT}, HTTP, 2 texts a request"


@exhaustive
@pytest.mark.alone
def test_http_open_past_the_limit(default_artifact: Path) -> None:
    limits = ("POLYHEAD_MAX_QUEUE_TOKENS=1024", "POLYHEAD_MAX_REQUEST_TOKENS=1024")
    options = ("--texts", 64, "--seconds", 3, "--warmup", 1, "--share", 0.3, 4, "--set", limits[0], "--set", limits[1])
    below, above = run_script("http open", "--model", default_artifact, *options)["open_loop"]
    assert below["429_%"] < 5  # 0 on a machine that does nothing else: the queue takes thirty texts here
    assert above["429_%"] > 20
    assert above["retry_after_%"] == 100
    assert below["failed"] == above["failed"] == 0


@exhaustive
@pytest.mark.alone
def test_soak(default_artifact: Path) -> None:
    options = ("--minutes", 0.1, "--interval", 0.5, "--connections", 2)
    tables = run_script("service soak", "--model", default_artifact, *options)
    assert tables["memory"][0]["peak"] > 50
    assert {row["status"] for row in tables["answers"]} <= {"200", "422"}


@exhaustive
@pytest.mark.alone
def test_startup(default_artifact: Path) -> None:
    options = ("--rounds", 1, "--requests", 32)
    interpreter, imports, ready = run_script("service startup", default_artifact, *options)["startup"]
    assert 0 < interpreter["seconds"] < imports["seconds"] < ready["seconds"]
    assert 0 < ready["files_after_mb"] < ready["pss_after_mb"]
    assert ready["pss_mb"] < ready["pss_after_mb"]


@exhaustive
@pytest.mark.alone
def test_replicas(default_artifact: Path) -> None:
    if shutil.which("nginx", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("nginx is not installed: Debian's package nginx-light brings it")
    options = ("--rate", 30, "--seconds", 1.5, "--drain-delay", 0.5)
    replaced, asked_again, not_asked = run_script("service replicas", "--model", default_artifact, *options)["replicas"]
    assert min(row["answered"] for row in (replaced, asked_again, not_asked)) > 20
    assert replaced["lost"] == 0
    # A closing port resets connections that no one accepted yet, and nginx asks the other replica: rarely one or two.
    assert replaced["unanswered_by_it"] <= 2
    assert asked_again["lost"] == 0
    assert not_asked["lost"] <= not_asked["unanswered_by_it"]


@exhaustive
def test_attention_cost(default_artifact: Path) -> None:
    options = ("--rounds", 1, "--seconds", 0.1, "--lengths", 24)
    tables = run_script("attention cost", "--model", default_artifact, *options)
    rows = {row["form"]: row for row in tables["attention_cost"]}
    assert len(rows) == 23  # nothing was refused
    assert rows["embedding alone"]["ratio"] == 1
    assert all(row["requests"] >= 1 and 0 < row["p50_ms"] <= row["p95_ms"] for row in rows.values())
    weights = 12 * 24**2  # of one layer; what else is in an answer takes a few kB
    bodies = {form: row["body_bytes"] for form, row in rows.items()}
    assert 0 < bodies["last layer, safetensors float32"] - 4 * weights < 4_000
    assert 0 < bodies["all layers, safetensors float16"] - 6 * 2 * weights < 4_000
    assert 0 < bodies["all layers, base64"] - 6 * 4 * weights * 4 / 3 < 4_000


@exhaustive
@pytest.mark.slow
def test_a_network_beside_transformers() -> None:
    options = ("--network", "tiny", "--lengths", 5, 16, "--rounds", 1, "--precisions", "--layers", 1)
    rows = run_script("engine transformers", *options)["transformers"]
    engines = ["the graph", "transformers", "the graph, int8"]
    assert [(row["tokens"], row["engine"]) for row in rows if "OpenVINO" not in row["engine"]] == [
        (length, engine) for length in (5, 16) for engine in engines
    ]
    assert all(row["by_the_graph"] > 0 for row in rows)
    assert all(row["difference"] < 1e-5 for row in rows if row["engine"] == "transformers")


@exhaustive
@pytest.mark.slow
def test_windows() -> None:
    (row,) = run_script("attention windows", "--lengths", 1100, "--layers", 2, "--rounds", 1)["windows"]
    assert row["tokens"] == 1100
    assert row["ratio"] == pytest.approx(row["dense_cpu_ms"] / row["blocks_cpu_ms"], rel=1e-3)


@exhaustive
@pytest.mark.alone
def test_http_cost(default_artifact: Path) -> None:
    options = ("--rounds", 1, "--texts", 16, "--seconds", 0.5, "--connections", 2)
    bare, no_model, whole = run_script("http cost", "--model", default_artifact, *options)["cost"]
    assert 0 < bare["server_us"] < no_model["server_us"] < whole["server_us"]


@exhaustive
def test_gpu_on_a_cpu(default_artifact: Path) -> None:
    options = ("--provider", "cpu", "--product", 64, "--lengths", 16, "--tokens", 16, 64, "--rounds", 1, "--texts", 16)
    tables = run_script("gpu rates", default_artifact, "--reference", default_artifact, *options)
    assert tables["parity"][0]["pooled_max_diff"] == tables["parity"][0]["attention_max_diff"] == 0
    assert [(row["texts"], row["workers"]) for row in tables["rates"]] == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert min(rates(tables["rates"])) > 0
    assert tables["peak"][0]["tflops"] > 0
    (nodes,) = tables["nodes"]
    assert nodes["provider"] == "CPU"
    assert nodes["nodes"] > 100


@exhaustive
def test_http_storm(default_artifact: Path, tmp_path: Path) -> None:
    picture = tmp_path / "storm.svg"
    options = ("--clients", 2, 40, "--seconds", 1, "--rounds", 1, "--plot", picture)
    rows = run_script("http storm", "--model", default_artifact, *options)["storm"]
    assert [row["clients"] for row in rows] == [2, 40]
    assert all(row["goodput_per_s"] > 0 and row["failed"] == 0 for row in rows)
    assert max(row["of_best_%"] for row in rows) == 100
    assert all(label in picture.read_text() for label in ("answered", "first port", "admin port"))


@exhaustive
def test_service_processes(default_artifact: Path) -> None:
    options = ("--processes", 1, 2, "--workers", 2, "--clients", 4, "--seconds", 1, "--rounds", 1)
    tables = run_script("service processes", "--model", default_artifact, *options)
    assert [row["processes"] for row in tables["rates"]] == [1, 2]
    assert all(row["requests_per_s"] > 0 for row in tables["rates"])
    (balance,) = tables["balance"]
    assert balance["parent_busiest_%"] == 50
    assert balance["kernel_busiest_%"] > 60  # by the draw it is 68.75: two of four in a half of all cases, else more
    assert tables["memory"][1]["pss_mb"] > tables["memory"][0]["pss_mb"]


@exhaustive
def test_networks_are_written_and_read_back(tmp_path: Path) -> None:
    for kind, task in (("network", "embedding"), ("reranker", "classification")):
        folder = tmp_path / kind
        command = [sys.executable, "-m", "benchmarks", "inputs", kind, "minilm-l6", str(folder)]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own script
        encoder = read_checkpoint(Folder(folder, kind)).encoder
        assert (encoder.config.task, encoder.config.num_heads, encoder.config.hidden_size) == (task, (12,) * 6, 384)


@exhaustive
def test_explaining(default_artifact: Path) -> None:
    (row,) = run_script("attention explaining", default_artifact, "--tokens", 9, "--rounds", 1)["explaining"]
    assert (row["tokens"], row["runs"]) == (9, 1)
    assert row["processor_ms"] > 0


@exhaustive
def test_claims() -> None:
    tables = run_script("attention claims", "--only", "softmax", "values", "--runs", 3)
    options = {row["option"]: row for row in tables["value_stream"]}
    assert {row["neutral_change"] for row in options.values()} == {0}
    assert all(row["active_change"] > 1e-3 for row in options.values())
    assert all(row["fused"] == 3 for row in options.values())


@exhaustive
def test_quality_and_faithfulness(default_artifact: Path, tmp_path: Path) -> None:
    pairs, definitions = write_pairs(tmp_path / "pairs.csv", 20), tmp_path / "definitions.csv"
    definitions.write_text("".join(f"word {i},{text}\n" for i, text in enumerate(draw_texts(20, seed=1))))
    files = ("--pairs", pairs, "--definitions", definitions, "--documents", 20, "--queries", 10)
    rows = run_script("quality formats", default_artifact, *files)["formats"]
    assert [row["bytes a vector"] for row in rows] == [1536, 384, 384, 384, 384, 48]
    rows = run_script("attention faithfulness", "--pairs", pairs, "--count", 2)["faithfulness"]
    assert len(rows) == 8
