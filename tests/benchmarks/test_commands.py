"""Every script runs on a real artifact and prints its tables; settings too small for figures that mean anything."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.exhaustive
ROOT = Path(__file__).parents[2]


def run_script(name: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", *f"benchmarks.{name}".split(), *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)  # noqa: S603 - our own scripts
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["benchmark"] == name
    assert result["machine"]["cores"] >= 1
    tables: dict[str, Any] = result["tables"]
    return tables


def rates(rows: list[dict[str, Any]]) -> list[float]:
    return [row["tokens_per_s"] for row in rows]


def test_engine(default_artifact: Path) -> None:
    tables = run_script("engine rates", default_artifact, "--rounds", 1, "--texts", 16, "--tokens", 64)
    assert {row["product"] for row in tables["products"]} == {"fp32"}
    assert min(rates(tables["shapes"]) + rates(tables["texts"])) > 0
    assert all(0 < row["real_%"] <= 100 for row in tables["texts"])


def test_http_closed(default_artifact: Path) -> None:
    options = ("--rounds", 1, "--texts", 16, "--texts-per-request", 1, 4, "--seconds", 0.5, "--connections", 2)
    tables = run_script("http closed", "--model", default_artifact, *options)
    assert min(rates(tables["rates"])) > 0
    assert [row["of"] for row in tables["service_over_engine"]] == ["HTTP, 1 text a request", "HTTP, 4 texts a request"]


def test_http_versions(default_artifact: Path) -> None:
    options = ("--rounds", 1, "--texts", 16, "--texts-per-request", 2, "--seconds", 0.5, "--connections", 2)
    tables = run_script("http versions", ROOT, ROOT, "--model", default_artifact, *options)
    assert min(rates(tables["rates"])) > 0
    (ratio,) = tables["ratios"]
    assert ratio["of"] == f"2: {ROOT}, HTTP, 2 texts a request"
    assert ratio["over"] == f"1: {ROOT}, HTTP, 2 texts a request"


@pytest.mark.alone
def test_http_open_past_the_limit(default_artifact: Path) -> None:
    limits = ("POLYHEAD_MAX_QUEUE_TOKENS=1024", "POLYHEAD_MAX_REQUEST_TOKENS=1024")
    options = ("--texts", 64, "--seconds", 3, "--warmup", 1, "--share", 0.3, 4, "--set", limits[0], "--set", limits[1])
    below, above = run_script("http open", "--model", default_artifact, *options)["open_loop"]
    assert below["429_%"] < 5  # 0 on a machine that does nothing else: the queue takes thirty texts here
    assert above["429_%"] > 20
    assert above["retry_after_%"] == 100
    assert below["failed"] == above["failed"] == 0


@pytest.mark.alone
def test_soak(default_artifact: Path) -> None:
    options = ("--minutes", 0.1, "--interval", 0.5, "--connections", 2)
    tables = run_script("service soak", "--model", default_artifact, *options)
    assert tables["memory"][0]["peak"] > 50
    assert {row["status"] for row in tables["answers"]} <= {"200", "422"}


@pytest.mark.alone
def test_startup(default_artifact: Path) -> None:
    interpreter, imports, ready = run_script("service startup", default_artifact, "--rounds", 1)["startup"]
    assert 0 < interpreter["seconds"] < imports["seconds"] < ready["seconds"]


def test_stages(default_artifact: Path) -> None:
    options = ("--rounds", 1, "--texts", 16, "--texts-per-request", 1, 4, "--seconds", 0.5, "--connections", 2)
    tables = run_script("engine stages", "--model", default_artifact, *options)
    ways = {row["way"].split()[0] for row in tables["stages"]}
    assert {"PyTorch", "sentence-transformers", "HTTP,"} < ways


def test_training() -> None:
    tables = run_script("engine training", "--texts", 8, "--batch-size", 4, "--rounds", 1)
    assert [row["precision"] for row in tables["training"]] == ["fp32", "bf16"]
    assert all(row["tokens_per_s"] > 0 for row in tables["training"])


@pytest.mark.alone
def test_replicas(default_artifact: Path) -> None:
    if shutil.which("nginx", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("nginx is not installed: Debian's package nginx-light brings it")
    options = ("--rate", 30, "--seconds", 1.5, "--drain-delay", 0.5)
    replaced, asked_again, not_asked = run_script("service replicas", "--model", default_artifact, *options)["replicas"]
    assert min(row["answered"] for row in (replaced, asked_again, not_asked)) > 20
    assert replaced["lost"] == 0
    # A closing port resets connections that nobody accepted yet, and nginx asks the other replica: rarely one or two.
    assert replaced["unanswered_by_it"] <= 2
    assert asked_again["lost"] == 0
    assert not_asked["lost"] <= not_asked["unanswered_by_it"]


def test_compression(default_artifact: Path) -> None:
    rows = run_script("http gzip", "--model", default_artifact, "--rounds", 1)["compression"]
    ratios = {(row["answer"], row["level"]): row["ratio"] for row in rows}
    assert ratios["attention, last, float", 1] > 2
    assert ratios["attention, last, float", 1] > ratios["attention, last, base64", 1]
    assert ratios["32 texts, base64", 1] < 1.5


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
    assert [row["form"] for row in tables["writing"]] == [
        "JSON",
        "base64",
        *(f"safetensors float{n}" for n in (32, 16)),
    ]


@pytest.mark.slow
def test_a_network_beside_transformers() -> None:
    options = ("--network", "tiny", "--lengths", 5, 16, "--rounds", 1)
    rows = run_script("engine transformers", *options)["transformers"]
    assert [(row["tokens"], row["engine"]) for row in rows] == [
        (length, engine) for length in (5, 16) for engine in ("the graph", "transformers")
    ]
    assert all(row["difference"] < 1e-5 and row["by_the_graph"] > 0 for row in rows[1::2])


@pytest.mark.slow
def test_windows() -> None:
    (row,) = run_script("attention windows", "--lengths", 1100, "--layers", 2, "--rounds", 1)["windows"]
    assert row["tokens"] == 1100
    assert row["ratio"] == pytest.approx(row["dense_cpu_ms"] / row["blocks_cpu_ms"], rel=1e-3)


@pytest.mark.alone
def test_http_cost(default_artifact: Path) -> None:
    options = ("--rounds", 1, "--texts", 16, "--seconds", 0.5, "--connections", 2)
    bare, no_model, whole = run_script("http cost", "--model", default_artifact, *options)["cost"]
    assert 0 < bare["server_us"] < no_model["server_us"] < whole["server_us"]


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


def test_http_storm(default_artifact: Path, tmp_path: Path) -> None:
    picture = tmp_path / "storm.svg"
    options = ("--clients", 2, 40, "--seconds", 1, "--rounds", 1, "--plot", picture)
    rows = run_script("http storm", "--model", default_artifact, *options)["storm"]
    assert [row["clients"] for row in rows] == [2, 40]
    assert all(row["goodput_per_s"] > 0 and row["failed"] == 0 for row in rows)
    assert max(row["of_best_%"] for row in rows) == 100
    assert picture.read_text().count("<polyline") == 3


def test_service_processes(default_artifact: Path) -> None:
    options = ("--processes", 1, 2, "--workers", 2, "--clients", 4, "--seconds", 1, "--rounds", 1)
    tables = run_script("service processes", "--model", default_artifact, *options)
    assert [row["processes"] for row in tables["rates"]] == [1, 2]
    assert all(row["requests_per_s"] > 0 for row in tables["rates"])
    (balance,) = tables["balance"]
    assert balance["parent_busiest_%"] == 50
    assert balance["kernel_busiest_%"] > 60  # by the draw it is 68.75: two of four in a half of all cases, else more
    assert tables["memory"][1]["pss_mb"] > tables["memory"][0]["pss_mb"]
