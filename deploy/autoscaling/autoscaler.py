"""Kubernetes' HorizontalPodAutoscaler: from metrics to a number of replicas.

Follows `pkg/controller/podautoscaler` of Kubernetes 1.34: `replica_calculator.go` for what a metric asks for,
`horizontal.go` for stabilisation windows and policies. It knows neither Prometheus nor replicas.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from deploy.autoscaling.rules import Direction, Metric, Policy, Rules

SYNC_SECONDS = 15.0  # --horizontal-pod-autoscaler-sync-period
TOLERANCE = 0.1  # --horizontal-pod-autoscaler-tolerance


@dataclass(frozen=True, slots=True)
class Usage:
    """What the autoscaler sees of the replicas at one moment.

    Attributes:
        cpu: share of its CPU request that each ready replica uses.
        starting: replicas that are not ready.
    """

    cpu: Sequence[float]
    starting: int


class Autoscaler:
    """One autoscaler with its memory of what it recommended and did."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._recommended: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def sync(self, at: float, current: int, usage: Usage, value_of: Callable[[str], float | None]) -> int:
        """The number of replicas that are to be.

        Args:
            at: seconds; rises from call to call.
            current: replicas that there are, ready or not.
            usage: of the CPU.
            value_of: the value of a PromQL query.
        """
        if not self._recommended:
            self._recommended.append((at, current))  # a new controller begins with what it finds
        asked = [self._ask(metric, current, usage, value_of) for metric in self._rules.metrics]
        stable = self._stabilise(at, current, self._clamp(max(asked)))
        wanted = self._clamp(self._limit(at, current, stable))
        if wanted != current:
            self._changes.append((at, wanted - current))
        return wanted

    def _ask(self, metric: Metric, current: int, usage: Usage, value_of: Callable[[str], float | None]) -> int:
        if metric.source == "cpu":
            return cpu_replicas(metric.target, current, usage)
        value = value_of(metric.query)
        return current if value is None else average_value_replicas(metric.target, current, value)

    def _clamp(self, replicas: int) -> int:
        return max(self._rules.least, min(self._rules.most, replicas))

    def _stabilise(self, at: float, current: int, desired: int) -> int:
        """The recommendation nearest to today's number within each direction's window."""
        lowest = min([desired, *self._since(at - self._rules.up.window)])
        highest = max([desired, *self._since(at - self._rules.down.window)])
        self._recommended.append((at, desired))
        return min(max(current, lowest), highest)

    def _since(self, start: float) -> list[int]:
        return [desired for time, desired in self._recommended if time > start]

    def _limit(self, at: float, current: int, desired: int) -> int:
        if desired > current:
            return min(desired, max(current, self._bound(at, current, self._rules.up, scale_up_to, max)))
        if desired < current:
            return max(desired, min(current, self._bound(at, current, self._rules.down, scale_down_to, min)))
        return current

    def _bound(
        self,
        at: float,
        current: int,
        direction: Direction,
        allowed: Callable[[Policy, int], int],
        widest: Callable[[Iterable[int]], int],
    ) -> int:
        """How far the policies let the number go, from what it was when each one's period began."""
        starts = {
            policy: current - sum(change for time, change in self._changes if time > at - policy.period)
            for policy in direction.policies
        }
        return widest([allowed(policy, start) for policy, start in starts.items()])


def average_value_replicas(target: float, current: int, value: float) -> int:
    """As `GetExternalPerPodMetricReplicas`: a sum over all replicas, and what one should have of it."""
    if abs(value / (target * current) - 1) <= TOLERANCE:
        return current
    return math.ceil(value / target)


def cpu_replicas(target: float, current: int, usage: Usage) -> int:
    """As `GetResourceReplicas`: replicas that are not ready count as idle where the others ask for more."""
    if not usage.cpu:
        return current
    ratio = sum(usage.cpu) / len(usage.cpu) / target
    if ratio > 1 and usage.starting:
        counted = len(usage.cpu) + usage.starting
        ratio = sum(usage.cpu) / counted / target
        if ratio <= 1 + TOLERANCE:
            return current
        return max(current, math.ceil(ratio * counted))
    if abs(ratio - 1) <= TOLERANCE:
        return current
    return math.ceil(ratio * len(usage.cpu))


def scale_up_to(policy: Policy, start: int) -> int:
    """The most replicas that a policy allows, from those at the start of its period."""
    return start + policy.value if policy.kind == "Pods" else math.ceil(start * (1 + policy.value / 100))


def scale_down_to(policy: Policy, start: int) -> int:
    """The fewest."""
    return start - policy.value if policy.kind == "Pods" else int(start * (1 - policy.value / 100))
