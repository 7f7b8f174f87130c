"""The dashboard against Grafana's own published types, made into a JSON Schema."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.observability.picture import DASHBOARD
from tests.deploy.tools import install_packages

pytestmark = pytest.mark.slow


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


def test_grafanas_types_take_the_dashboard_and_refuse_what_is_wrong(tmp_path: Path) -> None:
    node = install_packages(Path(__file__).with_name("grafana"), tmp_path)
    paths = {}
    for index, (name, change) in enumerate(WRONG.items()):
        dashboard = json.loads(DASHBOARD.read_text())
        change(dashboard)
        paths[name] = tmp_path / f"wrong-{index}.json"
        paths[name].write_text(json.dumps(dashboard))
    command = [node, str(tmp_path / "check.mjs"), str(DASHBOARD), *map(str, paths.values())]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)  # noqa: S603 - our own
    assert (done.returncode, done.stderr) == (1, "")
    refused = {line.partition(".json")[0] + ".json" for line in done.stdout.splitlines()}
    assert refused == set(map(str, paths.values())), done.stdout
