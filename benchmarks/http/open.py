"""What latency do clients see at a given rate, and what becomes of the service when they ask for more than it has?

Arrivals are Poisson and wait for nobody; latency counts from the time a request was due. The rates are shares of the
sustainable rate, which a closed loop finds first: below it for latency, far above it for overload. Past its limit a
good service refuses quickly (429 with Retry-After), keeps its goodput, and answers what it accepted as quickly as
before.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from benchmarks.lib.command import CannotMeasure, not_negative, parser_of, positive, program
from benchmarks.lib.comparison import encode_requests, fetch
from benchmarks.lib.load import OpenRun, Request, poisson_schedule, run_closed_loop, run_open_loop
from benchmarks.lib.report import Spread, Table, emit, percentiles
from benchmarks.lib.server import Server, polyhead
from benchmarks.lib.texts import fingerprint, load_texts, tokenize
from model.artifact import Artifact

CONNECTIONS = 4096  # most requests under way at once
CLOSED_CONNECTIONS = 64  # of the closed loop


def sustainable_rate(server: Server, requests: Sequence[Request], seconds: float) -> Spread:
    """Requests a second that a closed loop gets out of the server, over several runs; the first one warms up.

    Raises:
        CannotMeasure: none was answered.
    """
    runs = [
        run_closed_loop(server.address, requests, connections=CLOSED_CONNECTIONS, seconds=seconds) for _ in range(4)
    ]
    rates = Spread.of([run.rates()["requests_per_s"] for run in runs[1:]])
    if not rates.lowest:
        raise CannotMeasure("no request of the closed loop was answered: raise --seconds, or see the server's log")
    return rates


def offer(server: Server, requests: Sequence[Request], rate: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Offers a number of requests a second and describes the outcome, as cells of the table.

    Raises:
        CannotMeasure: it is too little to count anything.
    """
    schedule = poisson_schedule(rate, arguments.warmup + arguments.seconds)
    if not schedule or schedule[-1] <= arguments.warmup:
        raise CannotMeasure(f"{rate:g}/s: no request is due after the warm-up: raise --share or --seconds")
    count = server.count_cores()
    run = run_open_loop(server.address, requests, schedule, connections=CONNECTIONS, warmup=arguments.warmup)
    cores = count()
    return {**describe(run), "server_cores": cores}


def describe(run: OpenRun) -> dict[str, Any]:
    """Shares of the due requests, goodput, and the latency of the accepted ones."""
    due = sum(run.due.statuses.values())
    return {
        "requests_per_s": due / run.due.seconds,  # a Poisson process' own, near the rate that was asked for
        "goodput_per_s": run.done.rates()["requests_per_s"],
        "accepted_%": 100 * run.due.statuses[200] / due,
        "429_%": 100 * run.due.statuses[429] / due,
        "retry_after_%": 100 * run.due.with_retry_after / run.due.refused if run.due.refused else None,
        "failed": run.due.failed,
        **percentiles(run.due.latencies),
        "connections": run.connections,
        "client_cores": run.done.client_cpu / run.done.seconds,
    }


@program
def main() -> None:
    """Finds the sustainable rate, offers shares of it, prints the outcome of each."""
    parser = parser_of(__doc__, "model", "set", takes="about two and a half minutes", seconds=20.0, texts=2000)
    parser.add_argument("--share", type=positive, nargs="+", default=[0.5, 0.8, 3.0], help="of the sustainable rate")
    parser.add_argument("--warmup", type=not_negative, default=10.0, help="seconds before a load counts: queues fill")
    arguments = parser.parse_args()
    artifact, texts = Artifact.open(arguments.model), load_texts("short", arguments.texts)
    requests = encode_requests(texts, tokenize(artifact, texts), 1)
    table, settings = Table("open_loop", "short texts, one a request, Poisson arrivals"), dict(arguments.set)
    with polyhead(arguments.model, settings) as server:
        fetch(server, requests[0])  # it answers, and with 200
        sustainable = sustainable_rate(server, requests, arguments.seconds / 2)
        most = sustainable.median
        print(f"sustainable: {most:.0f} requests/s ({sustainable})", flush=True)
        for share in tqdm(arguments.share, desc="measuring", unit="load", leave=False, disable=None):
            row = offer(server, requests, share * most, arguments)
            of_most = {"of_sustainable_%": 100 * row["goodput_per_s"] / most}
            table.add(offered=f"{share:g} x sustainable", **row, **of_most)
    emit("http open", [table], sustainable_per_s=most, texts=fingerprint(texts), server_settings=settings)
