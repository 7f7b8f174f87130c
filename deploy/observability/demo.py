"""`python -m deploy.observability.demo --model DIR`: the dashboard's picture from a real Prometheus over real services.

Two instances of the service and a Prometheus are started; what one instance can do alone is measured, then come some
minutes of load: little of that, more, too much, and little again. Needs Debian's package `prometheus`; Grafana is not
needed, and not run.
"""

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from tqdm import tqdm

from benchmarks.lib.command import parser_of, positive, program
from benchmarks.lib.load import Address, Request, poisson_schedule, post, run_closed_loop, run_open_loop
from benchmarks.lib.server import polyhead
from benchmarks.lib.texts import load_texts
from benchmarks.service.process import mixed_requests
from deploy.observability.picture import draw, read_panels
from deploy.observability.scrape import scraping
from model.artifact import Artifact

PICTURE = Path(__file__).parents[2] / "docs/pictures/dashboard.png"
INSTANCES = 2
PROBE_CONNECTIONS, PROBE_SECONDS = 4, 10.0  # to each instance, to see what it can do
LOADS = (0.4, 1.2, 3.0, 0.6)  # of that, to all of them together, in each quarter of the time
CONNECTIONS = 128  # to each instance, at most
SETTLE = 3.0  # seconds from the start of Prometheus to its first scrapes, and after the load to its last


def make_requests(artifact: Artifact) -> list[Request]:
    """Requests of every kind and to every kind of route; some are refused, some texts are cut."""
    requests = mixed_requests(artifact)
    texts = load_texts("short", 40, seed=1)
    requests += [post("/v1/embeddings", {"input": text, "model": artifact.manifest.model}) for text in texts]
    requests += [post("/tokenize", {"inputs": text}) for text in texts]
    requests += [post("/explain", {"a": one, "b": other}) for one, other in pairwise(texts[:10])]
    requests += [post("/encode", {"inputs": "word " * 2000}) for _ in range(5)]
    random.Random(0).shuffle(requests)  # noqa: S311 - an order, no secret
    return requests


@program
def main() -> None:
    """Serves, scrapes, loads and draws."""
    parser = parser_of(__doc__, takes="some minutes")
    parser.prog = "python -m deploy.observability.demo"
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="artifact to serve")
    parser.add_argument("--seconds", type=positive, default=240, help="of load")
    parser.add_argument("--output", type=Path, default=PICTURE, metavar="PNG", help="the picture")
    given = parser.parse_args()
    requests = make_requests(Artifact.open(given.model))
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        one_worker = {"POLYHEAD_WORKERS": "1"}
        servers = [running.enter_context(polyhead(given.model, one_worker)) for _ in range(INSTANCES)]
        addresses = [server.address for server in servers]
        prometheus = running.enter_context(scraping(addresses, folder))
        probe = run_closed_loop(addresses[0], requests, connections=PROBE_CONNECTIONS, seconds=PROBE_SECONDS)
        rate = probe.rates()["requests_per_s"]
        time.sleep(SETTLE)
        start = time.time()
        for share in tqdm(LOADS, desc="load", unit="quarter"):
            _send(addresses, requests, share * rate / INSTANCES, given.seconds / len(LOADS))
        time.sleep(SETTLE)
        given.output.parent.mkdir(parents=True, exist_ok=True)
        draw(list(read_panels()), prometheus, start, time.time(), given.output)
    sys.stdout.write(f"{given.output}\n")


def _send(addresses: Sequence[Address], requests: Sequence[Request], rate: float, seconds: float) -> None:
    """Requests at a rate to each instance, whether it keeps up or not."""
    with ThreadPoolExecutor() as pool:
        runs = []
        for index, address in enumerate(addresses):
            arrivals = poisson_schedule(rate, seconds, seed=index)
            some = requests[index::INSTANCES]
            runs.append(pool.submit(run_open_loop, address, some, arrivals, connections=CONNECTIONS))
    for run in runs:
        run.result()


if __name__ == "__main__":
    main()
