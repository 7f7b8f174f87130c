"""What the service promises, and how fast it may use up what it does not.

The error budget of 30 days, and the alerts on how fast it burns: long window to be sure, short window to end soon after
the trouble does (Beyer et al., The Site Reliability Workbook, chapter 5, table 5-8). Change the objectives here.
"""

from dataclasses import dataclass
from typing import Literal

AVAILABILITY = 0.999  # share of POST requests not answered 5xx; a caller whose own deadline passed is not failed
LATENCY = 0.99  # share of POST requests of a size, answered 200, that took at most
LATENCY_SECONDS = {"small": 1.0, "medium": 10.0}
"""Seconds by the class of a request's tokens (`service.observability.metrics.SIZES`), each a bucket of the durations.

A queue may be half a second (--max-queue-delay), and sixteen times the request's own run besides. Large requests, of
more than 8,192 tokens, have no objective of their own: 65,536 tokens take five seconds of two cores, however well the
service is. What bounds them is --request-timeout, beyond which they are 504 and count as errors.
"""

LEAST_REQUESTS = 10
"""Failed or slow requests in the long window below which no alert burns: one of ten in a quiet hour is no trend."""


@dataclass(frozen=True, slots=True)
class Burn:
    """One speed at which the budget burns.

    Attributes:
        factor: times the speed that just uses the budget up in 30 days.
        long, short: windows that both have to burn that fast.
        wait: how long they have to.
        severity: `page` wakes somebody, `ticket` is for the next working day.
    """

    factor: float
    long: str
    short: str
    wait: str
    severity: Literal["page", "ticket"]


BURNS = (
    Burn(14.4, "1h", "5m", "2m", "page"),
    Burn(6, "6h", "30m", "15m", "page"),
    Burn(1, "3d", "6h", "1h", "ticket"),
)
BUDGET = "30d"
