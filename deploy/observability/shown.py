"""What the committed dashboard shows, read back from its JSON: for checking it, and for drawing it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.observability.promql import CHOSEN, STEP

DASHBOARD = Path(__file__).parents[1] / "grafana/polyhead.json"


@dataclass(frozen=True, slots=True)
class Target:
    """One query.

    Attributes:
        legend: Grafana's template of a line's name.
        expression: PromQL with Grafana's variables in it.
        is_instant: whether one moment is asked for, not a range.
    """

    legend: str
    expression: str
    is_instant: bool

    def fill_in(self, *, step: str, span: str) -> str:
        """PromQL without variables: every job and instance, rates over `step`, all of it over `span`."""
        chosen = {STEP: step, CHOSEN: span, "$job": ".*", "$instance": ".*"}
        expression = self.expression
        for name, value in chosen.items():
            expression = expression.replace(name, value)
        return expression


@dataclass(frozen=True, slots=True)
class ShownPanel:
    """One panel.

    Attributes:
        row: title of its row.
        title: of the panel.
        description: what it shows.
        kind: Grafana's type.
        unit: Grafana's name of the unit.
        is_stacked: whether its lines stand on each other.
        place: x, y, width and height in the grid of 24 columns.
        targets: its queries.
        columns: of a table, one a query.
        units: of a table, by column.
        hidden: columns and labels that a table does not show.
    """

    row: str
    title: str
    description: str
    kind: str
    unit: str
    is_stacked: bool
    place: tuple[int, int, int, int]
    targets: tuple[Target, ...]
    columns: tuple[str, ...]
    units: dict[str, str]
    hidden: frozenset[str]


def read_panels(path: Path = DASHBOARD) -> Iterator[ShownPanel]:
    """Every panel of a dashboard, those of collapsed rows too, in their order."""
    row = ""
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            yield from (_read_panel(row, inner) for inner in panel.get("panels", ()))
        else:
            yield _read_panel(row, panel)


def _read_panel(row: str, panel: dict[str, Any]) -> ShownPanel:
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    unit = defaults.get("unit") or panel.get("options", {}).get("yAxis", {}).get("unit", "short")
    stacking = defaults.get("custom", {}).get("stacking", {}).get("mode", "none")
    place = panel["gridPos"]
    organize: dict[str, Any] = next(
        (one["options"] for one in panel.get("transformations", ()) if one["id"] == "organize"), {}
    )
    overrides = panel.get("fieldConfig", {}).get("overrides", ())
    return ShownPanel(
        row,
        panel["title"],
        panel["description"],
        panel["type"],
        unit,
        stacking != "none",
        (place["x"], place["y"], place["w"], place["h"]),
        tuple(Target(one["legendFormat"], one["expr"], one.get("instant", False)) for one in panel["targets"]),
        tuple(organize.get("renameByName", {}).values()),
        {one["matcher"]["options"]: one["properties"][0]["value"] for one in overrides},
        frozenset(organize.get("excludeByName", {})),
    )
