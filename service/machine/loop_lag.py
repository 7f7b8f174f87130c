"""How late the event loop is. Whatever holds it up shows here, from a long computation to a stopped process."""

import asyncio
import time
from collections.abc import Callable

INTERVAL = 0.1  # seconds


async def watch_loop_lag(observe: Callable[[float], None], interval: float = INTERVAL) -> None:
    """Reports once an interval, for ever, how many seconds late a timer was. Timers are exact to a millisecond."""
    while True:
        due = time.monotonic() + interval
        await asyncio.sleep(interval)
        observe(max(0.0, time.monotonic() - due))
