"""`python -m deploy.observability.demo --model DIR`: the dashboard's picture from a real Prometheus over real services.

Two instances of the service and a Prometheus are started, a few minutes of load follow each other: little, more, too
much, and little again. Needs Debian's package `prometheus`; Grafana is not needed, and not run.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from benchmarks.client import Address, Request
from benchmarks.load import run_closed_loop
from benchmarks.server import polyhead
from benchmarks.soak import mixed_requests
from deploy.observability.picture import draw
from deploy.observability.scrape import NoPrometheus, scraping
from deploy.observability.shown import read_panels
from model.artifact import Artifact

PICTURE = Path(__file__).parents[2] / "docs/pictures/dashboard.png"
INSTANCES = 2
CONNECTIONS = (2, 4, 48, 2)  # to each instance, in each quarter of the time
SETTLE = 3.0  # seconds from the start of Prometheus to its first scrapes, and after the load to its last


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it all; 1 where Prometheus is missing."""
    given = _parse(arguments)
    requests = mixed_requests(Artifact.open(given.model), seed=0)
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        one_worker = {"POLYHEAD_WORKERS": "1"}
        servers = [running.enter_context(polyhead(given.model, one_worker)) for _ in range(INSTANCES)]
        addresses = [server.address for server in servers]
        try:
            prometheus = running.enter_context(scraping(addresses, folder))
        except NoPrometheus as missing:
            sys.stderr.write(f"{missing}\n")
            return 1
        time.sleep(SETTLE)
        start = time.time()
        for connections in tqdm(CONNECTIONS, desc="load", unit="quarter"):
            _send(addresses, requests, connections, given.seconds / len(CONNECTIONS))
        time.sleep(SETTLE)
        given.output.parent.mkdir(parents=True, exist_ok=True)
        draw(list(read_panels()), prometheus, start, time.time(), given.output)
    sys.stdout.write(f"{given.output}\n")
    return 0


def _send(addresses: Sequence[Address], requests: Sequence[Request], connections: int, seconds: float) -> None:
    threads = [
        threading.Thread(
            target=run_closed_loop,
            args=(address, requests[index::INSTANCES]),
            kwargs={"connections": connections, "seconds": seconds, "warmup": 0},
        )
        for index, address in enumerate(addresses)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.observability.demo", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="artifact to serve")
    parser.add_argument("--seconds", type=float, default=240, help="of load; %(default)s")
    parser.add_argument("--output", type=Path, default=PICTURE, metavar="PNG", help="%(default)s")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
