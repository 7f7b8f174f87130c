"""What is left of the service while clients that are refused ask again at once, and do probes get through?

A closed loop of more and more clients that stay connected and send the next request as soon as they are answered, 429
or not. Meanwhile a process of its own probes: `GET /healthz` on a new connection every tenth of a second, on the first
port and on the admin port, counted from the attempt to connect; a slow probe holds up no other. Load generator and
probes run on the server's cores.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.lib.command import CannotMeasure, new_file, parser_of, program, whole
from benchmarks.lib.comparison import encode_requests
from benchmarks.lib.load import Request, Tally, run_closed_loop
from benchmarks.lib.report import Spread, Table, draw_curves, emit, in_turns
from benchmarks.lib.server import Server, free_port, polyhead
from benchmarks.lib.texts import fingerprint, load_texts, tokenize
from model.artifact import Artifact

WARMUP = 2.0  # seconds before each measurement: the queue fills, pauses grow
PROBE_INTERVAL = 0.1  # seconds
PROBE_LIMIT = 10.0  # seconds, after which a probe has failed
PROBE = b"GET /healthz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"


Probe = tuple[float, bool]  # seconds, and whether it got 200


async def probe(port: int, into: list[Probe]) -> None:
    """One probe."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(PROBE_LIMIT):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(PROBE)
            status = (await reader.read())[9:12]
            writer.close()
    except (OSError, TimeoutError):
        status = b""
    into.append((time.perf_counter() - began, status == b"200"))


async def probe_for(ports: Sequence[int], warmup: float, seconds: float) -> list[list[Probe]]:
    """Probes each port until the time is over."""
    found: list[list[Probe]] = [[] for _ in ports]
    await asyncio.sleep(warmup)
    async with asyncio.TaskGroup() as group:
        for _ in range(round(seconds / PROBE_INTERVAL)):
            for port, into in zip(ports, found, strict=True):
                group.create_task(probe(port, into))
            await asyncio.sleep(PROBE_INTERVAL)
    return found


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured storm.

    Attributes:
        tally: the answers.
        first: probes on the first port.
        admin: probes on the admin port.
        server_cores: that the server kept busy.
    """

    tally: Tally
    first: list[Probe]
    admin: list[Probe]
    server_cores: float


def measure(server: Server, admin: int, requests: Sequence[Request], clients: int, seconds: float) -> Sample:
    """One storm."""
    ports = f"{server.address.port},{admin}"
    command = [sys.executable, "-m", "benchmarks.http.storm", ports, str(WARMUP), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as prober:  # noqa: S603 - our own program
        cores = server.count_cores()
        tally = run_closed_loop(server.address, requests, connections=clients, seconds=seconds, warmup=WARMUP)
        busy = cores()
        output, _ = prober.communicate()
    if prober.returncode:
        raise CannotMeasure("the probes ended early")
    first, second = json.loads(output)
    return Sample(tally, first, second, busy)


def describe(clients: int, samples: Sequence[Sample], seconds: float) -> dict[str, object]:
    """A row of the table, but for the share of the best."""
    tallies = [sample.tally for sample in samples]
    first = [probe for sample in samples for probe in sample.first]
    admin = [probe for sample in samples for probe in sample.admin]
    probe_p50, probe_p99 = 1000 * np.percentile([took for took, _ in first], (50, 99))
    admin_p50, admin_p99 = 1000 * np.percentile([took for took, _ in admin], (50, 99))
    return {
        "clients": clients,
        "goodput_per_s": Spread.of([tally.requests / seconds for tally in tallies]).median,
        "refused_per_s": Spread.of([tally.statuses[429] / seconds for tally in tallies]).median,
        "failed": sum(tally.failed for tally in tallies),
        "probe_p50_ms": float(probe_p50),
        "probe_p99_ms": float(probe_p99),
        "admin_p50_ms": float(admin_p50),
        "admin_p99_ms": float(admin_p99),
        "probes_failed": sum(not answered for _, answered in (*first, *admin)),
        "server_cores": Spread.of([sample.server_cores for sample in samples]).median,
        "client_cores": Spread.of([tally.client_cpu / seconds for tally in tallies]).median,
    }


@program
def main() -> None:
    """Starts the server, runs the storms alternately, prints and draws."""
    parser = parser_of(__doc__, "model", "set", takes="about two minutes", seconds=8.0, rounds=2)
    parser.add_argument("--clients", type=whole, nargs="+", default=[16, 64, 128, 512, 2000], help="ascending")
    parser.add_argument("--plot", type=new_file, metavar="FILE", help="draw the figures as SVG")
    arguments = parser.parse_args()
    if arguments.clients != sorted(set(arguments.clients)):
        parser.error("--clients: expected ascending numbers")
    artifact, texts = Artifact.open(arguments.model), load_texts("short", 2000)
    requests = encode_requests(texts, tokenize(artifact, texts), 1)
    admin = free_port()
    settings = {"POLYHEAD_ADMIN_PORT": str(admin), **dict(arguments.set)}
    with polyhead(arguments.model, settings) as server:
        ways = {
            count: partial(measure, server, admin, requests, count, arguments.seconds) for count in arguments.clients
        }
        results = in_turns(ways, arguments.rounds, warmup=0)
    table = Table("storm", "clients that ask again as soon as they are answered, one text a request")
    rows = [describe(count, samples, arguments.seconds) for count, samples in results.items()]
    best = max(float(str(row["goodput_per_s"])) for row in rows)
    for row in rows:
        table.add(**row, **{"of_best_%": 100 * float(str(row["goodput_per_s"])) / best})
    if arguments.plot is not None:
        columns = {column: [row[column] for row in table.rows] for column in table.rows[0]}
        panels = {
            "Answers a second, by clients that ask again at once": {"answered": columns["goodput_per_s"]},
            "Probes on new connections, 99th percentile in ms": {
                "first port": columns["probe_p99_ms"],
                "admin port": columns["admin_p99_ms"],
            },
        }
        draw_curves(arguments.plot, arguments.clients, panels)
    emit("http storm", [table], texts=fingerprint(texts), server_settings=settings)


if __name__ == "__main__":  # the process of the probes
    probed = asyncio.run(probe_for([*map(int, sys.argv[1].split(","))], float(sys.argv[2]), float(sys.argv[3])))
    sys.stdout.write(json.dumps(probed))
