"""Arrivals over time, in replicas' worth of work: 1.0 keeps one replica busy all the time."""

import math
from collections.abc import Callable
from dataclasses import dataclass

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Trace:
    """A load.

    Attributes:
        text: what it is.
        load: by seconds.
        seconds: how long.
        start: replicas at the beginning.
    """

    text: str
    load: Callable[[float], float]
    seconds: float
    start: int


def _between(at: float, start: float, length: float) -> float:
    """0 before `start`, 1 after `start + length`, and evenly between."""
    return min(1.0, max(0.0, (at - start) / length))


def _constant(load: float) -> Callable[[float], float]:
    return lambda _: load


def _spike(at: float) -> float:
    """From 1.2 replicas' worth to five times that within half a minute, and back after ten minutes."""
    return 1.2 * (1 + 4 * (_between(at, 5 * MINUTE, 30) - _between(at, 15 * MINUTE, 30)))


def _sawtooth(at: float) -> float:
    return 1.0 + 5.5 * (at % (20 * MINUTE)) / (20 * MINUTE)


def _night(at: float) -> float:
    return 3.5 - 2.5 * math.cos(2 * math.pi * at / (120 * MINUTE))


TRACES = {
    "steady": Trace("ten replicas, 80 % busy", _constant(8.0), 45 * MINUTE, start=10),
    "steady70": Trace("five replicas, 70 % busy", _constant(3.5), 30 * MINUTE, start=5),
    "ramp": Trace(
        "from 1 to 6.5 in twenty minutes", lambda at: 1 + 5.5 * _between(at, 300, 1200), 40 * MINUTE, start=2
    ),
    "spike": Trace("five times as much within half a minute, for ten minutes", _spike, 30 * MINUTE, start=2),
    "night": Trace("a day's rise and fall within two hours", _night, 120 * MINUTE, start=2),
    "sawtooth": Trace("a rise of twenty minutes that falls at once, again and again", _sawtooth, 60 * MINUTE, start=2),
}
