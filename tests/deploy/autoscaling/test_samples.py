"""Queries over scraped samples give what Prometheus gives: `promtool test rules` on the same figures."""

from pathlib import Path

import pytest
import yaml

from deploy.autoscaling.rules import keda, keda_gpu
from deploy.autoscaling.samples import Samples
from tests.deploy.tools import run, tool

COUNTED, GAUGED = "polyhead_worker_busy_seconds_total", "polyhead_queue_tokens"
INTERVAL, MOMENT = 15, 80  # seconds; no sample stands on an edge of a window that ends then
SERIES = {  # by replica; the second one started later
    COUNTED: {1: (0.0, 10.0, 25.0, 30.0, 50.0, 55.0), 2: (None, None, None, 2.0, 9.0, 14.0)},
    GAUGED: {1: (0.0, 900.0, 20.0, 0.0, 70.0, 10.0), 2: (None, None, None, 40.0, 0.0, 5.0)},
}
QUERIES = [
    *(metric.query for rules in (keda(), keda_gpu()) for metric in rules.metrics),
    'sum(avg_over_time(polyhead_queue_tokens{namespace="polyhead"}[1m]))',
    'sum(polyhead_queue_tokens{namespace="polyhead"})',
]


def scraped() -> Samples:
    samples = Samples()
    for metric, replicas in SERIES.items():
        for replica, values in replicas.items():
            for index, value in enumerate(values):
                if value is not None:
                    samples.add(replica, index * INTERVAL, {metric: value})
    return samples


@pytest.mark.parametrize("query", [query for query in dict.fromkeys(QUERIES) if "polyhead_tokens_total" not in query])
def test_values_are_prometheus_own(query: str, tmp_path: Path) -> None:
    found = scraped().value(query, MOMENT)
    assert found is not None
    series = [
        {
            "series": f'{metric}{{namespace="polyhead", instance="{replica}"}}',
            "values": " ".join("_" if value is None else f"{value:g}" for value in values),
        }
        for metric, replicas in SERIES.items()
        for replica, values in replicas.items()
    ]
    expected = [{"expr": query, "eval_time": f"{MOMENT}s", "exp_samples": [{"labels": "{}", "value": found}]}]
    test = {"interval": f"{INTERVAL}s", "input_series": series, "promql_expr_test": expected}
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "1s", "tests": [test]}))
    run(tool("promtool", "Debian's package prometheus brings it"), "test", "rules", path)


def test_nothing_scraped_is_no_answer() -> None:
    assert Samples().value("sum(rate(x[1m]))", 60) is None


@pytest.mark.parametrize(
    ("query", "message"),
    [("x", "has a value a replica"), ("sum(irate(x[1m]))", "expected sum"), ("max(x)", "expected sum")],
)
def test_what_it_does_not_know_is_an_error(query: str, message: str) -> None:
    samples = Samples()
    samples.add(0, 0, {"x": 1})
    with pytest.raises(ValueError, match=message):
        samples.value(query, 60)
