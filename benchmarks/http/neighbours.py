"""What do clients of one model notice while another model of the same process is flooded?

One service has two models. Requests to the second one arrive at random times, however slow the answers are. Clients of
the first one ask again as soon as they are answered, from a process of their own. Both ways are measured alternately.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.lib.command import parser_of, positive, program, whole
from benchmarks.lib.comparison import encode_requests
from benchmarks.lib.load import Request, Tally, poisson_schedule, run_closed_loop, run_open_loop
from benchmarks.lib.report import Table, emit, in_turns, percentiles
from benchmarks.lib.server import Server, polyhead
from benchmarks.lib.texts import fingerprint, load_texts, tokenize
from model.artifact import Artifact

OTHER = "other"  # the second model's name in requests
WARMUP = 2.0  # seconds of the load before it counts: the queue fills


def measure(
    server: Server, requests: Sequence[Request], flood: Sequence[Request], arguments: argparse.Namespace
) -> tuple[Tally, Tally]:
    """Counts the second model's answers and the first one's. If `flood` is empty, the first model is idle."""
    schedule = poisson_schedule(arguments.rate, WARMUP + arguments.seconds)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        if flood:
            length = {"seconds": arguments.seconds, "warmup": WARMUP}
            flooding = pool.submit(run_closed_loop, server.address, flood, connections=arguments.clients, **length)
        run = run_open_loop(server.address, requests, schedule, connections=256, warmup=WARMUP)
        return run.due, flooding.result() if flood else Tally(arguments.seconds)


def describe(name: str, measured: Sequence[tuple[Tally, Tally]]) -> dict[str, object]:
    """A row of the table, over all rounds."""
    seen, flood = (sum((pair[which].statuses for pair in measured), Counter[int]()) for which in (0, 1))
    return {
        "first_model": name,
        "answered": seen[200],
        "refused": seen[429],
        "failed": seen.total() - seen[200] - seen[429],
        **percentiles([latency for ours, _ in measured for latency in ours.latencies]),
        "flood_answered": flood[200],
        "flood_refused": flood[429],
    }


@program
def main() -> None:
    """Measures the second model with the first one idle and flooded, alternately."""
    parser = parser_of(__doc__, "model", "set", takes="a minute and a half", seconds=8.0, rounds=3)
    parser.add_argument("--other", type=Path, required=True, metavar="DIR", help="artifact whose latency is measured")
    parser.add_argument("--rate", type=positive, default=30.0, help="requests a second to the second model")
    parser.add_argument("--clients", type=whole, default=64, help="of the flood of --model, 32 texts a request")
    arguments = parser.parse_args()
    first, second = Artifact.open(arguments.model), Artifact.open(arguments.other)
    texts = load_texts("short", 640)
    flood = encode_requests(texts, tokenize(first, texts), 32, {"model": first.manifest.model})
    requests = encode_requests(texts, tokenize(second, texts), 1, {"model": OTHER})
    settings = {**dict(arguments.set), "POLYHEAD_MORE_MODELS": f"{OTHER}={arguments.other.resolve()}"}
    with polyhead(arguments.model, settings) as server:
        ways = {
            name: partial(measure, server, requests, some, arguments)
            for name, some in (("idle", []), ("flooded", flood))
        }
        results = in_turns(ways, arguments.rounds)
    table = Table("neighbours", f"the second model, {arguments.rate:g} requests/s of one text")
    for name, measured in results.items():
        table.add(**describe(name, measured))
    ratio = table.rows[1]["p99_ms"] / table.rows[0]["p99_ms"]
    print(f"p99 while the other is flooded: {ratio:.2f} times as long")
    emit("http neighbours", [table], p99_ratio=ratio, texts=fingerprint(texts), server_settings=settings)
