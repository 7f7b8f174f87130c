"""The Grafana dashboard: the rows in their order, and what is chosen above them."""

from collections.abc import Iterator

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from deploy.observability import process_rows, request_rows
from deploy.observability.panels import SOURCE
from service.observability import metric_names as names

UID = "polyhead"
ROWS = (
    request_rows.health,
    request_rows.latency,
    request_rows.traffic,
    request_rows.batching,
    process_rows.saturation,
    request_rows.attention,
    process_rows.instances,
)


def write_dashboard() -> str:
    """The dashboard as JSON, its panels numbered in their order."""
    made = dashboard.Dashboard("Polyhead").uid(UID).tags(["polyhead"]).timezone("browser").readonly()
    made = made.description(
        "An attention encoder behind HTTP. Made by `python -m deploy.observability`: edit it there."
    )
    made = made.time("now-1h", "now").refresh("30s").tooltip(models.DashboardCursorSync.CROSSHAIR)
    for chosen in _variables():
        made = made.with_variable(chosen)
    number = 0
    for row in ROWS:
        title, panels = row()
        made = made.with_row(dashboard.Row(title).id(number := number + 1))
        for panel in panels:
            made = made.with_panel(panel.id(number := number + 1))  # type: ignore[attr-defined]  # every kind has it
    built = made.build()
    for variable in built.templating.list_val or ():
        variable.auto = variable.auto_min = variable.auto_count = None  # the SDK sets them, Grafana's types have none
    return JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"


def _variables() -> Iterator[dashboard.DatasourceVariable | dashboard.QueryVariable]:
    yield dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    queries = {
        "job": f"label_values({names.READY}, job)",
        "instance": f'label_values({names.READY}{{job=~"$job"}}, instance)',
    }
    for name, query in queries.items():
        yield (
            dashboard.QueryVariable(name)
            .label(name.capitalize())
            .datasource(SOURCE)
            .query({"query": query, "refId": name})
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(models.VariableOption(selected=True, text="All", value="$__all"))
        )
