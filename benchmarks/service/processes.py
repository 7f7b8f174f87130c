"""What do several processes behind one port give, how do they share connections, and what memory do they take?

Requests a second are those of a model that waits instead of computing, so that a machine of two cores has sixteen
"cores" for it: what is left to measure is what event loops carry. The load generator runs on the same cores. The parent
shares out connections; beside it stands the kernel's own way, `SO_REUSEPORT`, with plain sockets. Memory is that of the
real model; PSS counts what processes share once.
"""

import socket
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.lib.command import parser_of, program, whole
from benchmarks.lib.comparison import encode_requests, medians, over_http
from benchmarks.lib.load import Request
from benchmarks.lib.report import Spread, Table, emit, in_turns, median, percentiles
from benchmarks.lib.server import Server, polyhead, pss_bytes
from benchmarks.lib.texts import fingerprint, load_texts, tokenize
from model.artifact import Artifact

DRAWS = 200  # of the kernel's, for each number of clients
TEXT_SECONDS = 0.002  # of a worker for each text
CONNECTIONS = 64  # requests under way at any time


def measure_rates(arguments: Namespace, requests: Sequence[Request]) -> Table:
    """Requests a second by processes and workers, all layouts alternately."""
    with ExitStack() as stack:
        ways = {}
        for workers, count in product(arguments.workers, arguments.processes):
            if count <= workers:
                server = stack.enter_context(_waiting(arguments.model, count, workers))
                ways[count, workers] = over_http(server, requests, CONNECTIONS, arguments.seconds)
        results = in_turns(ways, arguments.rounds)
    table = Table("rates", f"a model that waits {1000 * TEXT_SECONDS:g} ms a text, {CONNECTIONS} connections")
    for (count, workers), samples in results.items():
        found = medians(f"{count} x {workers}", samples)
        rates, ones = ([sample.requests_per_s or 0.0 for sample in some] for some in (samples, results[1, workers]))
        table.add(
            processes=count,
            workers=workers,
            requests_per_s=found["requests_per_s"],
            spread=str(Spread.of(rates)),
            times_one=median([rate / one for rate, one in zip(rates, ones, strict=True)]),
            p99_ms=percentiles([latency for sample in samples for latency in sample.latencies])["p99_ms"],
            server_cores=found["server_cores"],
            client_cores=found["client_cores"],
        )
    return table


def _waiting(model: Path, processes: int, workers: int) -> AbstractContextManager[Server]:
    layout = {"POLYHEAD_PROCESSES": str(processes), "POLYHEAD_WORKERS": str(workers // processes)}
    settings = {**layout, "TEXT_SECONDS": str(TEXT_SECONDS)}
    return polyhead(model, settings, program=("benchmarks.http.servers", "no-model"))


def measure_balance(arguments: Namespace) -> Table:
    """The share of connections that the busiest process has: the parent's way, and the kernel's."""
    table = Table("balance", "connections of the busiest process")
    for processes in [count for count in arguments.processes if count > 1]:
        with _waiting(arguments.model, processes, processes) as server:
            for clients in arguments.clients:
                shares = np.array([_kernel_share(clients, processes) for _ in range(DRAWS)])
                cells = {
                    "parent_busiest_%": 100 * _parent_share(server, clients),
                    "kernel_busiest_%": 100 * float(shares.mean()),
                    "kernel_all_in_one_%": 100 * float((shares == 1).mean()),
                }
                table.add(clients=clients, processes=processes, **cells)
    return table


def _parent_share(server: Server, clients: int) -> float:
    """Of the connections that this opens; a request on each, so that they have arrived."""
    children = server.processes()[1:]
    before = [_sockets(pid) for pid in children]
    with ExitStack() as stack:
        for _ in range(clients):
            client = stack.enter_context(socket.create_connection((server.address.host, server.address.port)))
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: benchmark\r\n\r\n")
            client.recv(1)
        opened = [_sockets(pid) - was for pid, was in zip(children, before, strict=True)]
    return max(opened) / sum(opened)


def _sockets(pid: int) -> int:
    links = (Path(f"/proc/{pid}/fd") / name.name for name in Path(f"/proc/{pid}/fd").iterdir())
    return sum(str(link.readlink()).startswith("socket:") for link in links)


def _kernel_share(clients: int, processes: int) -> float:
    """The same of sockets that listen on one port with `SO_REUSEPORT`."""
    with ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("127.0.0.1", 0), reuse_port=True))
        address = first.getsockname()
        rest = [stack.enter_context(socket.create_server(address, reuse_port=True)) for _ in range(processes - 1)]
        for _ in range(clients):
            stack.enter_context(socket.create_connection(address))
        return max(_accepted(listener, stack) for listener in (first, *rest)) / clients


def _accepted(listener: socket.socket, stack: ExitStack) -> int:
    listener.setblocking(False)
    count = 0
    with suppress(BlockingIOError):
        while True:
            stack.enter_context(listener.accept()[0])
            count += 1
    return count


def measure_memory(arguments: Namespace, requests: Sequence[Request]) -> Table:
    """Memory of the real service when it is ready and has answered, by processes."""
    table = Table("memory", "MB, one worker a process")
    for count in arguments.processes:
        settings = {"POLYHEAD_PROCESSES": str(count), "POLYHEAD_WORKERS": "1"}
        with polyhead(arguments.model, settings) as server:
            over_http(server, requests[:64], 8, 1.0)()
            found = [pss_bytes(pid) / 1e6 for pid in server.processes()]
            table.add(
                processes=count,
                resident_mb=server.resident_bytes() / 1e6,
                pss_mb=sum(found),
                pss_of_parent_mb=found[0] if count > 1 else None,
            )
    return table


@program
def main() -> None:
    """Measures the three tables, prints."""
    parser = parser_of(__doc__, "model", takes="about three minutes", seconds=4.0, rounds=3)
    parser.add_argument("--processes", type=whole, nargs="+", default=[1, 2, 4], help="numbers of them; 1 among them")
    parser.add_argument("--workers", type=whole, nargs="+", default=[4, 8, 16], help="of all processes together")
    parser.add_argument("--clients", type=whole, nargs="+", default=[2, 4, 16], help="connections that stay")
    arguments = parser.parse_args()
    if 1 not in arguments.processes:
        parser.error("--processes: 1 is what the others are compared with")
    artifact, texts = Artifact.open(arguments.model), load_texts("short", 640)
    requests = encode_requests(texts, tokenize(artifact, texts), 1)
    tables = [measure_rates(arguments, requests), measure_balance(arguments), measure_memory(arguments, requests)]
    emit("service processes", tables, texts=fingerprint(texts))
