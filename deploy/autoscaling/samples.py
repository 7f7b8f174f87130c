"""What Prometheus has scraped, and the value of a scaler's query over it.

The queries are the manifests' own. Known are the functions and operators that they use; another one is an error.
"""

import bisect
import math
import operator
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import promql_parser

KEPT = 600.0  # seconds
LOOKBACK = 300.0  # seconds after which an instant query sees a sample no more (Prometheus' default)

Series = list[tuple[float, float]]  # (seconds, value)
OVER_TIME: dict[str, Callable[[Sequence[float]], float]] = {"avg_over_time": statistics.fmean, "max_over_time": max}
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda one, other: one / other if other else math.nan,
}


class Samples:
    """Samples by series and replica. A series is a metric's name, with its labels in braces if it has any."""

    def __init__(self) -> None:
        self._series: dict[str, dict[int, Series]] = defaultdict(lambda: defaultdict(list))
        self._ended: set[int] = set()

    def add(self, replica: int, at: float, values: Mapping[str, float]) -> None:
        """Takes in one scrape of one replica; times only rise."""
        for name, value in values.items():
            series = self._series[name][replica]
            series.append((at, value))
            if series[0][0] < at - KEPT:
                del series[0]

    def end(self, replica: int) -> None:
        """The replica is gone: instant queries see it no more, and ranges keep its samples, as Prometheus has it."""
        self._ended.add(replica)

    def value(self, query: str, at: float) -> float | None:
        """The value of a query without labels in its result; None if nothing answers it.

        Raises:
            ValueError: it has labels in its result, or uses what is not known here.
        """
        found = self._evaluate(promql_parser.parse(query), at)
        if isinstance(found, dict):
            raise ValueError(f"{query!r} has a value a replica: expected a sum")
        return None if found is None else float(found)

    def _evaluate(self, node: Any, at: float) -> Any:  # a number, numbers by replica, or None
        while isinstance(node, promql_parser.ParenExpr) or _is_call(node, "vector"):
            node = node.expr if isinstance(node, promql_parser.ParenExpr) else node.args[0]
        if isinstance(node, promql_parser.NumberLiteral):
            return node.val
        if isinstance(node, promql_parser.BinaryExpr):
            return self._combine(str(node.op), self._evaluate(node.lhs, at), self._evaluate(node.rhs, at), node)
        if isinstance(node, promql_parser.AggregateExpr) and str(node.op) == "sum":
            parts = self._evaluate(node.expr, at)
            return sum(parts.values()) if parts else None
        if isinstance(node, promql_parser.VectorSelector):
            found = self._within(node, LOOKBACK, at)
            return {replica: series[-1][1] for replica, series in found.items() if replica not in self._ended}
        if _is_call(node, "rate", *OVER_TIME):
            seconds = node.args[0].range.total_seconds()
            inside = self._within(node.args[0].vector_selector, seconds, at)
            if node.func.name == "rate":
                return {one: _rate(series, at - seconds, at) for one, series in inside.items() if len(series) > 1}
            over_time = OVER_TIME[node.func.name]
            return {one: over_time([value for _, value in series]) for one, series in inside.items()}
        raise ValueError(
            f"{node.prettify()}: expected sum, rate, {', '.join(OVER_TIME)}, vector, a metric or arithmetic"
        )

    @staticmethod
    def _combine(operation: str, one: float | None, other: float | None, node: Any) -> float | None:
        if operation == "or":
            return other if one is None else one
        if one is None or other is None:
            return None
        if operation == "and":
            return one
        if operation == ">":
            return one if one > other else None
        if operation not in ARITHMETIC:
            raise ValueError(f"{node.prettify()}: expected and, or, > or one of {' '.join(ARITHMETIC)}")
        return ARITHMETIC[operation](one, other)

    def _within(self, selector: Any, seconds: float, at: float) -> dict[int, Series]:
        labels = [f'{one.name}="{one.value}"' for one in selector.matchers.matchers if one.name != "namespace"]
        name = f"{selector.name}{{{','.join(labels)}}}" if labels else str(selector.name)
        first = (at - seconds, math.inf)
        found = {replica: series[bisect.bisect(series, first) :] for replica, series in self._series[name].items()}
        return {replica: series for replica, series in found.items() if series}


def _is_call(node: Any, *functions: str) -> bool:
    return isinstance(node, promql_parser.Call) and node.func.name in functions


def _rate(inside: Series, start: float, end: float) -> float:
    """Prometheus' own: extended to the window's ends where samples come near them (`extrapolatedRate`)."""
    (first, low), (last, high) = inside[0], inside[-1]
    between = (last - first) / (len(inside) - 1)
    before = first - start if first - start < 1.1 * between else between / 2
    if high > low:
        before = min(before, (last - first) * low / (high - low))  # a counter began at 0
    after = end - last if end - last < 1.1 * between else between / 2
    return (high - low) * ((last - first + before + after) / (last - first) / (end - start))
