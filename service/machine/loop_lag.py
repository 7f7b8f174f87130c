"""How late the event loop is: everything that holds it up, from a long answer to a stopped process, shows here."""

import asyncio
import time
from collections.abc import Callable

INTERVAL = 0.1  # seconds


async def watch_loop_lag(observe: Callable[[float], None], interval: float = INTERVAL) -> None:
    """Reports, once an interval and for ever, how many seconds late a timer was. Timers tick in milliseconds."""
    while True:
        due = time.monotonic() + interval
        await asyncio.sleep(interval)
        observe(max(0.0, time.monotonic() - due))
