"""The dashboard against Grafana's own published types, made into a JSON Schema."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.observability.picture import DASHBOARD

HERE = Path(__file__).parent / "grafana"
FILES = ("package.json", "package-lock.json", "tsconfig.json", "dashboard.ts", "check.mjs")

pytestmark = pytest.mark.slow


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=300)  # noqa: S603 - our own commands


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the check is, its packages installed for this run, at the versions of the lock file."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are not installed")
    for name in FILES:
        shutil.copy(HERE / name, tmp_path)
    done = run(tmp_path, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
    assert done.returncode == 0, done.stderr
    return tmp_path


def first(dashboard: dict[str, Any], kind: str) -> dict[str, Any]:
    panels = (panel for one in dashboard["panels"] for panel in (one, *one.get("panels", ())))
    return next(panel for panel in panels if panel["type"] == kind)


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "version is a text": lambda dashboard: dashboard.update(schemaVersion="41"),
    "no such kind of panel": lambda dashboard: first(dashboard, "heatmap").update(type="heatmapp"),
    "no such field of a panel": lambda dashboard: first(dashboard, "stat").update(titel="x"),
    "no such option": lambda dashboard: first(dashboard, "stat")["options"].update(colourMode="value"),
    "no such mode": lambda dashboard: first(dashboard, "timeseries")["fieldConfig"]["defaults"]["custom"].update(
        stacking={"mode": "stacked"}
    ),
    "no such field of a query": lambda dashboard: first(dashboard, "table")["targets"][0].update(query="up"),
    "no description": lambda dashboard: first(dashboard, "table").pop("description"),
}


def test_grafanas_types_take_the_dashboard_and_refuse_what_is_wrong(folder: Path) -> None:
    paths = {}
    for index, (name, change) in enumerate(WRONG.items()):
        dashboard = json.loads(DASHBOARD.read_text())
        change(dashboard)
        paths[name] = folder / f"wrong-{index}.json"
        paths[name].write_text(json.dumps(dashboard))
    done = run(folder, "node", "check.mjs", str(DASHBOARD), *map(str, paths.values()))
    assert (done.returncode, done.stderr) == (1, "")
    refused = {line.partition(".json")[0] + ".json" for line in done.stdout.splitlines()}
    assert refused == set(map(str, paths.values())), done.stdout
