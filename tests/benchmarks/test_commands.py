"""Every question: what it does on a real artifact, with settings too small for figures, and if it cannot measure."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.lib.command import program
from export.checkpoint import read_checkpoint
from export.sources import Folder
from service.errors import Invalid
from service.inference.backend import ProviderUnavailable
from tests.planted import draw_texts, write_pairs

exhaustive = pytest.mark.exhaustive
ROOT = Path(__file__).parents[2]

# What each question requires besides its options: "DIR" stands for an artifact, "CSV" for a file.
REQUIRED = {
    "attention explaining": ("DIR",),
    "attention faithfulness": ("DIR", "--pairs", "DIR/pairs.csv"),
    "gpu rates": ("DIR",),
    "http neighbours": ("--model", "DIR", "--other", "DIR"),
    "http versions": ("DIR", "DIR", "--model", "DIR"),
    "inputs network": ("minilm-l6", "DIR"),
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
WITHOUT_SENSE = [
    ("http closed", "--seconds", "0"),
    ("http closed", "--texts-per-request", "0"),
    ("http open", "--warmup", "nan"),
    ("attention faithfulness", "--prune-heads", "5"),
    ("engine transformers", "--lengths", "4096"),
    ("peers encode", "--plot", "no/such/folder.svg"),
]


def words(name: str, folder: Path) -> list[str]:
    places = {"DIR": str(folder), "CSV": str(folder / "no.csv")}
    return [places.get(word, word) for word in REQUIRED.get(name, ())]


@pytest.mark.parametrize(
    ("name", "wrong"), [*((name, ()) for name in REQUIRED), *((one[0], one[1:]) for one in WITHOUT_SENSE)]
)
def test_a_folder_that_is_no_artifact_or_an_argument_without_sense_is_named_in_one_line(
    name: str, wrong: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["__main__.py", *name.split(), *words(name, tmp_path), *wrong])
    with pytest.raises(SystemExit) as end:
        benchmarks.main()
    line = capsys.readouterr().err.splitlines()[-1]
    assert end.value.code == 2
    assert line.startswith(f"python -m benchmarks {name}: ")
    assert (wrong[0] if wrong else str(tmp_path)) in line


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


@pytest.mark.parametrize("error", [ProviderUnavailable("no card"), Invalid("no labels")])
def test_what_an_engine_refuses_is_said_in_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    @program
    def main() -> None:
        raise error

    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.endswith(f": {error}\n")


def run_script(name: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", *name.split(), *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)  # noqa: S603 - our own scripts
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["benchmark"] == name
    assert result["machine"]["cores"] >= 1
    tables: dict[str, Any] = result["tables"]
    return tables


def write_definitions(folder: Path) -> Path:
    path = folder / "definitions.csv"
    path.write_text("".join(f"word {i},{text}\n" for i, text in enumerate(draw_texts(20, seed=1))))
    return path


# Settings too small for figures, and the tables that come of them, each with a column of numbers above 0.
SMALL: dict[str, tuple[str, dict[str, str]]] = {
    "attention claims": ("--only softmax values --runs 3", {"value_stream": "active_change"}),
    "attention cost": ("--rounds 1 --seconds 0.1 --lengths 24", {"attention_cost": "p50_ms"}),
    "attention explaining": ("--tokens 9 --rounds 1", {"explaining": "cpu_ms"}),
    "attention windows": ("--lengths 1100 --layers 2 --rounds 1", {"windows": "times_first"}),
    "engine transformers": (
        "--network tiny --lengths 5 --rounds 1 --precisions --onnx --layers 1",
        {"transformers": "times_first"},
    ),
    "gpu rates": (
        "--provider cpu --product 64 --lengths 16 --tokens 16 --rounds 1 --texts 16",
        {"rates": "tokens_per_s", "nodes": "nodes"},
    ),
    "http closed": ("--rounds 1 --texts 32 --seconds 0.5 --connections 2", {"rates": "tokens_per_s"}),
    "http cost": ("--rounds 1 --texts 16 --seconds 0.5 --connections 2", {"cost": "server_us"}),
    "http neighbours": ("--seconds 1 --rounds 1", {"neighbours": "answered"}),
    "http storm": ("--clients 2 40 --seconds 1 --rounds 1", {"storm": "goodput_per_s"}),
    "http versions": ("--rounds 1 --texts 32 --seconds 0.5 --connections 2", {"rates": "tokens_per_s"}),
    "service processes": (
        "--processes 1 2 --workers 2 5 --clients 4 --seconds 1 --rounds 1",
        {"rates": "requests_per_s"},
    ),
    "service soak": ("--minutes 0.1 --interval 0.5 --connections 2", {"memory": "peak"}),
    "service startup": ("--rounds 1 --requests 32", {"startup": "seconds"}),
}


@exhaustive
@pytest.mark.parametrize("name", SMALL)
def test_a_question_is_answered_by_numbers(name: str, default_artifact: Path) -> None:
    options, numbers = SMALL[name]
    required = (ROOT, ROOT, "--model", default_artifact) if name == "http versions" else words(name, default_artifact)
    tables = run_script(name, *required, *options.split())
    for table, column in numbers.items():
        assert tables[table]
        assert all(row[column] > 0 for row in tables[table])


@exhaustive
@pytest.mark.alone
def test_http_open_past_the_limit(default_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("POLYHEAD_MAX_QUEUE_TOKENS", "POLYHEAD_MAX_REQUEST_TOKENS"):
        monkeypatch.setenv(limit, "1024")
    options = ("--texts", 64, "--seconds", 3, "--warmup", 1, "--share", 0.3, 4)
    below, above = run_script("http open", "--model", default_artifact, *options)["open_loop"]
    assert below["429_%"] < 5  # 0 on a machine that does nothing else: the queue takes thirty texts here
    assert above["429_%"] > 20
    assert above["retry_after_%"] == 100
    assert below["failed"] == above["failed"] == 0


@exhaustive
@pytest.mark.alone
def test_replicas(default_artifact: Path) -> None:
    if shutil.which("nginx", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("nginx is not installed: Debian's package nginx-light brings it")
    options = ("--rate", 30, "--seconds", 1.5, "--drain-delay", 0.5)
    replaced, not_asked, asked_again = run_script("service replicas", "--model", default_artifact, *options)["replicas"]
    assert min(row["answered"] for row in (replaced, asked_again, not_asked)) > 20
    assert replaced["lost"] == 0
    # A closing port resets connections that no one accepted yet, and nginx asks the other replica: rarely one or two.
    assert replaced["unanswered_by_it"] <= 2
    assert asked_again["lost"] == 0
    assert not_asked["lost"] <= not_asked["unanswered_by_it"]


@exhaustive
@pytest.mark.parametrize(("options", "task"), [((), "embedding"), (("--reranker",), "classification")])
def test_networks_are_written_and_read_back(options: Sequence[str], task: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "inputs", "network", "minilm-l6", str(tmp_path / "made"), *options]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own script
    config = read_checkpoint(Folder(tmp_path / "made", "made")).encoder.config
    assert (config.task, config.num_heads, config.hidden_size) == (task, (12,) * 6, 384)


@exhaustive
def test_quality_and_faithfulness(default_artifact: Path, tmp_path: Path) -> None:
    pairs, definitions = write_pairs(tmp_path / "pairs.csv", 20), write_definitions(tmp_path)
    files = ("--pairs", pairs, "--definitions", definitions, "--documents", 20, "--queries", 10)
    rows = run_script("quality formats", default_artifact, *files)["formats"]
    assert [row["bytes a vector"] for row in rows] == [1536, 384, 384, 384, 384, 48]
    rows = run_script("attention faithfulness", "--pairs", pairs, "--count", 2)["faithfulness"]
    assert len(rows) == 8
