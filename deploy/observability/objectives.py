"""What the service promises, and how fast it may use up what it does not.

The error budget of 30 days, and the alerts on how fast it burns: long window to be sure, short window to end soon after
the trouble does (Beyer et al., The Site Reliability Workbook, chapter 5, table 5-8). Change the objectives here.
"""

from dataclasses import dataclass

AVAILABILITY = 0.999  # share of POST requests not answered 5xx
LATENCY = 0.99  # share of POST requests answered 200 that took at most
LATENCY_SECONDS = 1.0  # a bucket of the request duration; a queue may be half of it (--max-queue-delay)


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
    severity: str


BURNS = (
    Burn(14.4, "1h", "5m", "2m", "page"),
    Burn(6, "6h", "30m", "15m", "page"),
    Burn(1, "3d", "6h", "1h", "ticket"),
)
WINDOWS = ("5m", "30m", "1h", "6h", "3d")
