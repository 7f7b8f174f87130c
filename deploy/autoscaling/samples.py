"""What Prometheus has scraped, and the value of a scaler's query over it.

The queries are the manifests' own. Known are the functions that they use; another one is an error.
"""

import bisect
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import promql_parser

KEPT = 600.0  # seconds
LOOKBACK = 300.0  # seconds after which an instant query sees a sample no more (Prometheus' default)

Series = list[tuple[float, float]]  # (seconds, value)
OVER_TIME: dict[str, Callable[[Sequence[float]], float]] = {"avg_over_time": statistics.fmean, "max_over_time": max}


class Samples:
    """Samples by metric and replica."""

    def __init__(self) -> None:
        self._series: dict[str, dict[int, Series]] = defaultdict(lambda: defaultdict(list))

    def add(self, replica: int, at: float, values: Mapping[str, float]) -> None:
        """Takes in one scrape of one replica; times only rise."""
        for metric, value in values.items():
            series = self._series[metric][replica]
            series.append((at, value))
            if series[0][0] < at - KEPT:
                del series[0]

    def value(self, query: str, at: float) -> float | None:
        """The value of a query without labels in its result; None where nothing answers it.

        Raises:
            ValueError: it has labels in its result, or uses what is not known here.
        """
        found: float | dict[int, float] | None = self._evaluate(promql_parser.parse(query), at)
        if isinstance(found, dict):
            raise ValueError(f"{query!r} has a value a replica: expected a sum")
        return found

    def _evaluate(self, node: Any, at: float) -> Any:  # a number, numbers by replica, or None
        if isinstance(node, promql_parser.AggregateExpr) and str(node.op) == "sum":
            parts = self._evaluate(node.expr, at)
            return sum(parts.values()) if parts else None
        if isinstance(node, promql_parser.VectorSelector):
            return {replica: series[-1][1] for replica, series in self._within(str(node.name), LOOKBACK, at).items()}
        if isinstance(node, promql_parser.Call) and node.func.name in ("rate", *OVER_TIME):
            return self._call(node.func.name, node.args[0], at)
        raise ValueError(f"{node.prettify()}: expected sum, rate, {', '.join(OVER_TIME)} or a metric")

    def _call(self, function: str, window: Any, at: float) -> dict[int, float]:
        seconds = window.range.total_seconds()
        inside = self._within(window.vector_selector.name, seconds, at)
        if function == "rate":
            return {replica: _rate(series, at - seconds, at) for replica, series in inside.items() if len(series) > 1}
        over_time = OVER_TIME[function]
        return {replica: over_time([value for _, value in series]) for replica, series in inside.items()}

    def _within(self, metric: str, seconds: float, at: float) -> dict[int, Series]:
        first = (at - seconds, math.inf)
        found = {replica: series[bisect.bisect(series, first) :] for replica, series in self._series[metric].items()}
        return {replica: series for replica, series in found.items() if series}


def _rate(inside: Series, start: float, end: float) -> float:
    """Prometheus' own: extended to the window's ends where samples come near them (`extrapolatedRate`)."""
    (first, low), (last, high) = inside[0], inside[-1]
    between = (last - first) / (len(inside) - 1)
    before = first - start if first - start < 1.1 * between else between / 2
    if high > low:
        before = min(before, (last - first) * low / (high - low))  # a counter began at 0
    after = end - last if end - last < 1.1 * between else between / 2
    return (high - low) * ((last - first + before + after) / (last - first) / (end - start))
