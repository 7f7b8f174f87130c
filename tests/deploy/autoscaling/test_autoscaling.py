"""The autoscaler's arithmetic, by hand from Kubernetes' documentation, and what the manifests' rules do under load."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from deploy.autoscaling import autoscaler
from deploy.autoscaling.__main__ import main
from deploy.autoscaling.autoscaler import Autoscaler, Document, Metric, Rules, Usage, read_manifests
from deploy.autoscaling.samples import Samples
from deploy.autoscaling.simulation import ASSUMED, CPU, MINUTE, TRACES, Report, Simulation
from tests.deploy.cluster import component
from tests.deploy.tools import run, tool

KEDA = autoscaler.COMPONENTS / "autoscale/scaledobject.yaml"
HPA = autoscaler.COMPONENTS / "autoscale-hpa/horizontalpodautoscaler.yaml"
IDLE = Usage((), 0)
FASTER = [{"type": "Percent", "value": 100, "periodSeconds": 30}, {"type": "Pods", "value": 2, "periodSeconds": 30}]
FAST_UP: Document = {"stabilizationWindowSeconds": 0, "policies": FASTER}
HALF = [{"type": "Percent", "value": 50, "periodSeconds": 60}]
SLOW_DOWN: Document = {"stabilizationWindowSeconds": 300, "policies": HALF}


@pytest.mark.parametrize(
    ("current", "value", "expected"), [(4, 41, 4), (4, 43, 4), (4, 45, 5), (4, 37, 4), (4, 35, 4), (4, 30, 3)]
)
def test_a_sum_asks_for_replicas_beyond_a_tolerance(current: int, value: float, expected: int) -> None:
    assert autoscaler.average_value_replicas(10, current, value) == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (Usage((0.6, 0.6), 0), 2),  # as asked
        (Usage((1.0, 1.0), 0), 4),  # ceil(2 x 1.67)
        (Usage((0.2, 0.2), 0), 1),
        (Usage((1.0, 1.0), 2), 4),  # the starting ones count as idle: 0.5 of 0.6, and no way down meanwhile
        (Usage((1.0, 1.0, 1.0), 1), 5),  # 0.75 of 0.6 over four
        (IDLE, 4),  # nothing known
    ],
)
def test_cpu_counts_starting_replicas_as_idle_on_the_way_up(usage: Usage, expected: int) -> None:
    assert autoscaler.cpu_replicas(0.6, len(usage.cpu) + usage.starting or 4, usage) == expected


@pytest.mark.parametrize(
    ("replicas", "value", "expected"),
    [
        (2, 100.0, {0: 4, 15: 4, 30: 8, 45: 8, 60: 10}),
        (10, 0.0, {285: 10, 300: 5, 345: 5, 360: 2, 420: 2}),
        (4, None, {0: 4, 495: 4}),
    ],
    ids=[
        "policies bound each period",
        "the way down waits for the window and goes by halves",
        "a query without an answer changes nothing",
    ],
)
def test_behavior(replicas: int, value: float | None, expected: dict[int, int]) -> None:
    made, found = Autoscaler(Rules(2, 10, [Metric(10, "q")], FAST_UP, SLOW_DOWN)), {}
    for at in range(0, 500, 15):
        found[at] = replicas = made.sync(at, replicas, IDLE, lambda _: value)
    assert found | expected == found


def test_kustomize_renders_the_rules_that_are_simulated(tmp_path: Path) -> None:
    rendered = tmp_path / "scaledobject.yaml"
    for name in ("autoscale", "autoscale-gpu"):
        text = yaml.safe_dump(component(name).one("ScaledObject"))
        rendered.write_text(text.replace('namespace="polyhead"', 'namespace="$(POLYHEAD_NAMESPACE)"'))
        assert autoscaler.read_scaled_object(rendered) == read_manifests()[name]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("triggers", 0, "type"), "cron", "type prometheus"),
        (("triggers", 0, "metricType"), "Value", "AverageValue"),
        (("advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleUp", "selectPolicy"), "Min", "expected Max"),
        (("metrics", 0, "type"), "External", "expected a ContainerResource named cpu"),
    ],
)
def test_unknown_rules_are_refused(place: tuple[Any, ...], value: str, message: str, tmp_path: Path) -> None:
    source, read = (HPA, autoscaler.read_autoscaler) if place[0] == "metrics" else (KEDA, autoscaler.read_scaled_object)
    document = yaml.safe_load(source.read_text())
    part = document["spec"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (tmp_path / source.name).write_text(yaml.safe_dump(document))
    with pytest.raises(ValueError, match=message):
        read(tmp_path / source.name)


QUEUE_ALONE = Path(__file__).parent / "queue_alone.yaml"
RULES = read_manifests()
SPIKE_START, SPIKE_END = 5 * MINUTE, 15.5 * MINUTE


@cache
def simulate(name: str, load: str, seed: int = 0) -> Report:
    return Simulation(RULES[name], ASSUMED.get(name, CPU), TRACES[load], seed=seed).run()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))])
def test_one_large_request_scales_nothing(seed: int) -> None:
    """63,000 tokens every two minutes, a twentieth of what one replica does."""
    report = simulate("autoscale", "large", seed)
    assert {row.replicas for row in report.rows} == {2}
    assert report.refused_share() < 0.001


@pytest.mark.parametrize("name", ["autoscale", *(pytest.param(name, marks=pytest.mark.slow) for name in [*RULES][1:])])
def test_a_spike_is_followed_within_two_minutes(name: str) -> None:
    report = simulate(name, "spike")
    assert report.refused_share(SPIKE_START, SPIKE_END) < 0.25  # with those who come back and are refused again
    assert report.refused_share(SPIKE_START + 2 * MINUTE, SPIKE_END) < 0.001
    assert report.turns() == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("load", "most_above", "turns", "refused"),
    [("steady", 2, 1, 0.001), ("bursts", 2, 1, 0.001), ("sawtooth", 8, 5, 0.005)],
)
def test_a_load_that_is_steady_in_the_mean_is_left_alone_and_one_that_rises_is_followed(
    name: str, load: str, most_above: int, turns: int, refused: float
) -> None:
    report, start = simulate(name, load), TRACES[load].start
    assert {row.replicas for row in report.rows} <= {*range(start, start + most_above + 1)}
    assert report.turns() <= turns
    assert report.refused_share() < refused


def test_command_prints_a_table_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TRACES, "again", TRACES["large"])
    picture = tmp_path / "autoscaling.png"
    loads = ["--loads", "large", "--loads", "again"]
    assert main([*loads, "--compare", str(QUEUE_ALONE), "--picture", str(picture)]) == 0
    head, *lines, note = capsys.readouterr().out.splitlines()
    assert head.split() == ["rules", "load", "replicas", "turns", "refused", "p99"]
    expected = [[name, load] for name in ("queue_alone", *RULES) for load in ("large", "again")]
    assert [line.split()[:2] for line in lines] == expected
    assert note == "autoscale-gpu: what one replica does is assumed, not measured"
    assert lines[-1].split()[2:] != lines[2].split()[2:]  # and is another machine's
    with Image.open(picture) as drawn:
        assert drawn.width > drawn.height  # a row for each of two loads


@pytest.mark.parametrize(
    ("flag", "file", "content", "said"),
    [
        ("--compare", "gone.yaml", None, "expected a ScaledObject .* FileNotFoundError"),
        ("--compare", "a.yaml", "kind: Deployment\nspec: {}\n", "expected a ScaledObject .* KeyError"),
        ("--compare", "a.yaml", "{{- if .Values }}", "expected a ScaledObject .* ParserError"),
        ("--compare", "autoscale.yaml", QUEUE_ALONE.read_text(), "autoscale is compared anyway"),
        ("--compare", "a.yaml", QUEUE_ALONE.read_text().replace("sum(", "count("), "a: .*: expected sum, rate"),
        ("--picture", "gone/a.png", None, "expected a file in a folder that is there"),
    ],
)
def test_what_cannot_be_compared_or_drawn_is_named(
    flag: str, file: str, content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(SystemExit) as ended:
        main(["--loads", "large", flag, str(tmp_path / file)])
    assert re.search(said, f"{capsys.readouterr().err}{ended.value.code}")


GAUGED = "polyhead_queue_tokens"
Values = tuple[float | None, ...]
SERIES: dict[str, dict[int, Values]] = {  # by replica; the second one started later
    "polyhead_worker_busy_seconds_total": {
        1: (0.0, 20.0, 50.0, 80.0, 110.0, 140.0),
        2: (None, None, None, 2.0, 32.0, 62.0),
    },
    GAUGED: {1: (0.0, 900.0, 20.0, 0.0, 70.0, 10.0), 2: (None, None, None, 40.0, 0.0, 5.0)},
    "polyhead_busy_workers_limit": {1: (2.0,) * 6, 2: (None, None, None, 2.0, 2.0, 2.0)},
    "polyhead_workers": {1: (2.0,) * 6, 2: (None, None, None, 2.0, 2.0, 2.0)},
    "polyhead_tokens_total": {1: (0.0, 2e7, 4e7, 6e7, 8e7, 1e8)},
    'polyhead_stage_duration_seconds_bucket{stage="queue",le="0.2"}': {1: (0.0, 10.0, 20.0, 30.0, 35.0, 40.0)},
    'polyhead_stage_duration_seconds_count{stage="queue"}': {1: (0.0, 10.0, 25.0, 40.0, 55.0, 70.0)},
    'polyhead_requests_rejected_total{reason="overloaded"}': {1: (0.0, 0.0, 0.0, 5.0, 9.0, 12.0)},
}
INTERVAL, MOMENT = 15, 80  # seconds; no sample is on an edge of a window that ends then
QUERIES = [
    *(
        one.query.replace("$(POLYHEAD_NAMESPACE)", "a")
        for rules in RULES.values()
        for one in rules.metrics
        if one.query
    ),
    f'sum(avg_over_time({GAUGED}{{namespace="a"}}[1m]))',
    f'sum(max_over_time({GAUGED}{{namespace="a"}}[30s]))',
    f'sum({GAUGED}{{namespace="a"}})',
]


def test_values_of_queries_are_prometheus_own(tmp_path: Path) -> None:
    samples, series, expected = Samples(), [], []
    for metric, by_replica in SERIES.items():
        for replica, values in by_replica.items():
            for index, value in enumerate(values):
                if value is not None:
                    samples.add(replica, index * INTERVAL, {metric: value})
            name, _, labels = metric.rstrip("}").partition("{")
            labels = ", ".join(filter(None, ('namespace="a"', f'instance="{replica}"', labels)))
            written = " ".join("_" if value is None else f"{value:g}" for value in values)
            series.append({"series": f"{name}{{{labels}}}", "values": written})
    for query in dict.fromkeys(QUERIES):
        found = samples.value(query, MOMENT)
        assert found
        expected.append({"expr": query, "eval_time": f"{MOMENT}s", "exp_samples": [{"labels": "{}", "value": found}]})
    test = {"interval": f"{INTERVAL}s", "input_series": series, "promql_expr_test": expected}
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "1s", "tests": [test]}))
    run(tool("promtool", "Debian's package prometheus brings it"), "test", "rules", path)


def test_queries_without_an_answer_and_those_that_are_not_known() -> None:
    samples = Samples()
    samples.add(0, 0, {"x": 1})
    assert samples.value("sum(rate(y[1m]))", 60) is None
    assert samples.value("sum(x) and sum(y) or vector(0)", 60) == 0
    said = {"x": "has a value a replica", "sum(irate(x[1m]))": "expected sum", "sum(x) < 2": "expected and"}
    for query, message in said.items():
        with pytest.raises(ValueError, match=message):
            samples.value(query, 60)
