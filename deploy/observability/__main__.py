"""`python -m deploy.observability`: writes the dashboard, recording rules, alerts, and the objectives of the page."""

import argparse
import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path

import yaml
from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from deploy.observability.objectives import Document, describe_objectives, make_alerts, make_rules
from deploy.observability.overview import OBJECTIVES, OVERVIEW
from deploy.observability.panels import RUNBOOK_PLACE, SOURCE, STEP, series
from deploy.observability.rows import ROWS, STARTED
from service.observability import metrics as names

DEPLOY = Path(__file__).parents[1]
HEADER = "# Made by `python -m deploy.observability`: change it there.\n"


def write_files(runbook_url: str | None = None) -> dict[str, str]:
    """What the files hold, by their path below `deploy/`."""
    rules, alerts, written = make_rules(), make_alerts(runbook_url), write_dashboard(runbook_url)
    prometheus_rule = _write(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "polyhead"},
            "spec": {"groups": [*rules["groups"], *alerts["groups"]]},
        }
    )
    page = (DEPLOY / "../docs/observability.md").read_text("utf-8")
    begin, end = "<!-- python -m deploy.observability writes this table -->\n", "<!-- to here -->"
    return {
        "grafana/polyhead.json": written,
        "chart/polyhead.json": json.dumps(json.loads(written), separators=(",", ":")) + "\n",
        "prometheus/rules.yaml": _write(rules),
        "prometheus/alerts.yaml": _write(alerts),
        "kubernetes/components/monitoring/prometheusrule.yaml": prometheus_rule,
        "chart/prometheusrule.yaml": prometheus_rule,
        "../docs/observability.md": re.sub(
            f"{begin}.*?{end}", f"{begin}{describe_objectives()}{end}", page, flags=re.DOTALL
        ),
    }


def _write(document: Document) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=1000)
    return HEADER + text


def write_dashboard(runbook_url: str | None) -> str:
    """The dashboard as JSON, its panels numbered in their order; links lead to the runbook if it is published."""
    made = dashboard.Dashboard("Polyhead").uid("polyhead").tags(["polyhead"]).timezone("browser").readonly()
    made = made.description(
        "An attention encoder behind HTTP. Made by `python -m deploy.observability`: edit it there."
    )
    made = made.time("now-1h", "now").refresh("30s").tooltip(models.DashboardCursorSync.CROSSHAIR)
    if runbook_url:
        made = made.link(dashboard.DashboardLink("Runbook").type(models.DashboardLinkType.LINK).url(RUNBOOK_PLACE))
    # Moments that explain a change: where kube-state-metrics is there, every new revision of the Deployment.
    generation = 'kube_deployment_status_observed_generation{deployment=~"polyhead(-.*)?"}'
    moments = {
        "Started": (f"changes({series(STARTED)}[{STEP}]) > 0", "orange"),
        "Deployment changed": (f"changes({generation}[{STEP}]) > 0", "blue"),
    }
    for name, (expression, colour) in moments.items():
        annotation = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour)
        made = made.annotation(annotation.expr(expression))
    for chosen in _variables(runbook_url):
        made = made.with_variable(chosen)
    number = itertools.count(1)
    made = made.with_row(dashboard.Row("Overview").id(next(number)))
    for panel in deepcopy(OVERVIEW):
        if not runbook_url:
            panel.links([])  # type: ignore[attr-defined]  # every kind has it
        made = made.with_panel(panel.id(next(number)))  # type: ignore[attr-defined]  # likewise
    for title, panels in {"Objectives": OBJECTIVES, **ROWS}.items():
        collapsed = dashboard.Row(title).id(next(number))
        for panel in deepcopy(panels):
            collapsed = collapsed.with_panel(panel.id(next(number)))  # type: ignore[attr-defined]  # likewise
        made = made.with_row(collapsed)
    built = made.build()
    for variable in built.templating.list_val or ():
        variable.auto = variable.auto_min = variable.auto_count = None  # the SDK sets them, Grafana's types have none
    return JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"


def _variables(
    runbook_url: str | None,
) -> Iterator[dashboard.DatasourceVariable | dashboard.QueryVariable | dashboard.ConstantVariable]:
    yield dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    if runbook_url:
        yield dashboard.ConstantVariable("runbook").label("Runbook").value(runbook_url)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes them all."""
    parser = argparse.ArgumentParser(prog="python -m deploy.observability", description=__doc__)
    parser.add_argument("--runbook-url", help="where the runbook is published; without it nothing links to the runbook")
    for name, text in write_files(parser.parse_args(arguments).runbook_url).items():
        path = DEPLOY / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
