"""PromQL from parts, for the dashboard: every series is limited to the job and instance chosen there."""

from collections.abc import Sequence

EACH = ("instance", "pod")  # a pod's name where there are pods
EACH_LEGEND = "{{pod}} {{instance}}"
SCOPE = ('job=~"$job"', 'instance=~"$instance"')
STEP = "$__rate_interval"  # Grafana's: at least four scrapes, so that a rate always has two samples
CHOSEN = "$__range"  # the time range that is looked at

WORK = 'method="POST"'  # what callers wait for; probes, scrapes and pages are GET
ANSWERED = 'status="200"'
FAILED = 'status=~"5.."'


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


def mean(histogram: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """A histogram's average."""
    return f"{rate(f'{histogram}_sum', *matchers, by=by)} / {rate(f'{histogram}_count', *matchers, by=by)}"


def quantile(share: float, histogram: str, *matchers: str, by: Sequence[str] = ()) -> str:
    """A histogram's quantile, as precise as its buckets."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', *matchers, by=('le', *by))})"


def buckets(histogram: str, *matchers: str) -> str:
    """What a heatmap takes: values in each bucket."""
    return f"sum by (le) (increase({series(f'{histogram}_bucket', *matchers)}[{STEP}]))"


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)}) " if labels else ""
