"""Probes as Kubernetes sends them: `python -m benchmarks.http.prober PORT,PORT WARMUP SECONDS` prints what they took.

Each is a new connection and `GET /healthz`, every tenth of a second on each port. One that takes longer holds up no
other.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

INTERVAL = 0.1  # seconds
LIMIT = 10.0  # seconds, after which a probe has failed
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"


@dataclass
class Probed:
    """Probes of one port.

    Attributes:
        seconds: that each took.
        failed: how many got no 200.
    """

    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    @classmethod
    def of(cls, several: Sequence["Probed"]) -> "Probed":
        """All of several measurements."""
        return cls([took for one in several for took in one.seconds], sum(one.failed for one in several))

    def percentile(self, rank: float) -> float:
        """In milliseconds."""
        return 1000 * float(np.percentile(self.seconds, rank)) if self.seconds else float("nan")


async def probe(port: int, into: Probed) -> None:
    """One probe."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(LIMIT):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST)
            status = (await reader.read())[9:12]
            writer.close()
    except (OSError, TimeoutError):
        status = b""
    into.seconds.append(time.perf_counter() - began)
    into.failed += status != b"200"


async def probe_for(ports: Sequence[int], warmup: float, seconds: float) -> list[Probed]:
    """Probes each port until the time is over."""
    found = [Probed() for _ in ports]
    await asyncio.sleep(warmup)
    async with asyncio.TaskGroup() as group:
        for _ in range(round(seconds / INTERVAL)):
            for port, into in zip(ports, found, strict=True):
                group.create_task(probe(port, into))
            await asyncio.sleep(INTERVAL)
    return found


if __name__ == "__main__":
    given = [int(port) for port in sys.argv[1].split(",")]
    measured = asyncio.run(probe_for(given, float(sys.argv[2]), float(sys.argv[3])))
    sys.stdout.write(json.dumps([asdict(one) for one in measured]))
