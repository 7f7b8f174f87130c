"""`python -m deploy.observability`: writes the dashboard, recording rules, alerts, and the objectives of the page."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from deploy.observability.dashboard import write_dashboard
from deploy.observability.objectives import Document, describe_objectives, make_alerts, make_prometheus_rule, make_rules

DEPLOY = Path(__file__).parents[1]
HEADER = "# Made by `python -m deploy.observability`: change it there.\n"


def write_files(runbook_url: str | None = None) -> dict[str, str]:
    """What the files hold, by their path below `deploy/`."""
    rules, alerts, dashboard = make_rules(), make_alerts(runbook_url), write_dashboard(runbook_url)
    prometheus_rule = _write(make_prometheus_rule(rules, alerts))
    return {
        "grafana/polyhead.json": dashboard,
        "chart/polyhead.json": json.dumps(json.loads(dashboard), separators=(",", ":")) + "\n",
        "prometheus/rules.yaml": _write(rules),
        "prometheus/alerts.yaml": _write(alerts),
        "kubernetes/components/monitoring/prometheusrule.yaml": prometheus_rule,
        "chart/prometheusrule.yaml": prometheus_rule,
        "../docs/observability.md": _write_objectives(DEPLOY / "../docs/observability.md"),
    }


def _write_objectives(page: Path) -> str:
    """The page with the table of objectives between its two marks."""
    begin, end = "<!-- python -m deploy.observability writes this table -->\n", "<!-- to here -->"
    return re.sub(f"{begin}.*?{end}", f"{begin}{describe_objectives()}{end}", page.read_text("utf-8"), flags=re.DOTALL)


def _write(document: Document) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=1000)
    return HEADER + text


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
