"""How long the stages of requests take: counted in the metrics, noted in the request's trace."""

import time

from service.observability.metrics import Metrics, Stage
from service.observability.request_trace import note_stage


class StageTimer:
    """Counts a stage from entry to exit, failed or not. A class: a generator would cost as much again."""

    __slots__ = ("_metrics", "_stage", "_started")

    def __init__(self, metrics: Metrics, stage: Stage) -> None:
        self._metrics = metrics
        self._stage: Stage = stage

    def __enter__(self) -> None:
        """The stage begins."""
        self._started = time.monotonic()

    def __exit__(self, *_failure: object) -> None:
        """It has ended."""
        ended = time.monotonic()
        self._metrics.stages[self._stage].observe(ended - self._started)
        note_stage(self._stage, self._started, ended)
