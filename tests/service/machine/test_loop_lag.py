import asyncio
import time

from service.machine.loop_lag import watch_loop_lag


def test_lag_is_what_held_the_loop_up() -> None:
    lags: list[float] = []

    async def hold_up() -> None:
        watcher = asyncio.create_task(watch_loop_lag(lags.append, interval=0.01))
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # what the watcher is there to see
        await asyncio.sleep(0.05)
        watcher.cancel()

    asyncio.run(hold_up())
    assert len(lags) > 3
    assert min(lags) >= 0
    assert 0.25 < max(lags) < 5
