"""The kinds of panels, each with one look; and PromQL from parts, limited to the job and instance that are chosen."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_looks
from grafana_foundation_sdk.models import prometheus as query_looks

Panel = Builder[models.Panel]
Made = TypeVar("Made", stat.Panel, timeseries.Panel, heatmap.Panel, table.Panel)
Levels = Sequence[tuple[float | None, str]]  # from which value on, which colour

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
RUNBOOK_PLACE = "${runbook}"  # a constant of the dashboard
STAT_HEIGHT, HEIGHT = 4, 8
FULL_WIDTH = 24
NEUTRAL: Levels = ((None, "blue"),)
SHARE = "percentunit"  # Grafana's name of the unit


def make_stat(
    title: str,
    text: str,
    expression: str,
    *,
    unit: str = SHARE,
    decimals: int = 0,
    width: int = FULL_WIDTH // 8,
    levels: Levels = NEUTRAL,
    alert: str | None = None,
) -> Panel:
    """One number, coloured by its level; `alert` names the section of the runbook that a click leads to."""
    steps = [models.Threshold(value=value, color=color) for value, color in levels]
    panel = (
        _framed(stat.Panel(), title, text, width)
        .height(STAT_HEIGHT)
        .unit(unit)
        .decimals(decimals)
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .graph_mode(looks.BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_query("A", expression).instant())
    )
    if alert is None:
        return panel
    link = dashboard.DashboardLink(f"Runbook: {alert}").type(models.DashboardLinkType.LINK)
    return panel.links([link.url(f"{RUNBOOK_PLACE}#{alert.lower()}")])


def make_lines(
    title: str,
    text: str,
    expressions: Mapping[str, str],
    *,
    unit: str = "short",
    width: int = FULL_WIDTH // 3,
    stacking: looks.StackingMode = looks.StackingMode.NONE,
    exemplars: bool = False,
) -> Panel:
    """Lines over time, from 0, by their legend, `{{label}}` for a label's value; exemplars are points with a trace."""
    panel = (
        _framed(timeseries.Panel(), title, text, width)
        .unit(unit)
        .min(0)
        .line_width(1)
        .fill_opacity(10 if stacking is looks.StackingMode.NONE else 60)
        .show_points(looks.VisibilityMode.NEVER)
        .stacking(common.StackingConfig().mode(stacking))
        .legend(
            common.VizLegendOptions()
            .display_mode(looks.LegendDisplayMode.LIST)
            .placement(looks.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING))
    )
    for ref_id, (legend, expression) in zip("ABCDEFGH", expressions.items(), strict=False):
        panel = panel.with_target(_query(ref_id, expression, legend).range().exemplar(exemplars))
    return panel


def make_heatmap(title: str, text: str, expression: str, *, unit: str = "short") -> Panel:
    """How many values fell into each bucket, over time."""
    return (
        _framed(heatmap.Panel(), title, text, FULL_WIDTH // 3)
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_looks.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .fill("dark-orange")
            .scale(heatmap_looks.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        .y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(looks.AxisPlacement.LEFT))
        .with_target(_query("A", expression, "{{le}}").range().format(query_looks.PromQueryFormat.HEATMAP))
    )


def make_table(
    title: str, text: str, expressions: Mapping[str, str], *, units: Mapping[str, str], hidden: Sequence[str]
) -> Panel:
    """One line an instance, one column an expression, and one a label that it keeps, but the hidden."""
    panel = _framed(table.Panel(), title, text, FULL_WIDTH)
    names = {}
    for ref_id, (column, expression) in zip("ABCDEFGHIJKL", expressions.items(), strict=False):
        panel = panel.with_target(_query(ref_id, expression).instant().format(query_looks.PromQueryFormat.TABLE))
        names[f"Value #{ref_id}"] = column
    for column, unit in units.items():
        panel = panel.override_by_name(column, [models.DynamicConfigValue("unit", unit)])
    excluded = dict.fromkeys(hidden, True) | {f"Time {number}": True for number in range(1, len(names) + 1)}
    organize = {"renameByName": names, "excludeByName": excluded, "indexByName": {}}
    for name, options in {"joinByField": {"byField": "instance", "mode": "outer"}, "organize": organize}.items():
        panel = panel.with_transformation(models.DataTransformerConfig(name, options=options))
    return panel


def _framed(panel: Made, title: str, text: str, width: int) -> Made:
    return panel.title(title).description(text).datasource(SOURCE).height(HEIGHT).span(width)


def _query(ref_id: str, expression: str, legend: str = "") -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(ref_id).expr(expression).legend_format(legend).datasource(SOURCE)


EACH = ("instance", "pod")  # a pod's name if there are pods
EACH_LEGEND = "{{pod}} {{instance}}"
SCOPE = ('job=~"$job"', 'instance=~"$instance"')
STEP = "$__rate_interval"  # Grafana's: at least four scrapes, so that a rate always has two samples
CHOSEN = "$__range"  # the time range that is looked at

WORK = 'method="POST"'  # what callers wait for; probes, scrapes and pages are GET
ANSWERED = 'status="200"'
FAILED = 'status=~"5.."'
REFUSED, NOT_REFUSED = 'status="429"', 'status!="429"'


def series(name: str, *matchers: str) -> str:
    """A metric of the chosen instances."""
    return f"{name}{{{','.join((*SCOPE, *matchers))}}}"


def recorded(name: str, *matchers: str) -> str:
    """A recorded series of the chosen jobs: records know no instance."""
    return f"{name}{{{','.join((SCOPE[0], *matchers))}}}"


def rate(name: str, *matchers: str, by: Sequence[str] = (), over: str = STEP) -> str:
    """Per second, summed."""
    return f"sum{_by(by)}(rate({series(name, *matchers)}[{over}]))"


def total(name: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """A gauge, summed."""
    return f"sum{_by(by)}({series(name, *matchers)})"


def mean(histogram: str) -> str:
    """A histogram's average."""
    return f"{rate(f'{histogram}_sum')} / {rate(f'{histogram}_count')}"


def quantile(share: float, histogram: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """A histogram's quantile, as precise as its buckets."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', *matchers, by=('le', *by))})"


def buckets(histogram: str, *matchers: str) -> str:
    """What a heatmap takes: values in each bucket."""
    return f"sum by (le) (increase({series(f'{histogram}_bucket', *matchers)}[{STEP}]))"


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)}) " if labels else ""
