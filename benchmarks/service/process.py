"""The service as a process: its start and memory, and several processes behind one port."""

import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.lib.command import parser_of, program, whole
from benchmarks.lib.comparison import compare, encode_requests, fetch_body, over_http
from benchmarks.lib.load import Request
from benchmarks.lib.report import Spread, Table, emit, in_turns, median
from benchmarks.lib.server import Server, polyhead, pss_bytes
from benchmarks.lib.texts import fingerprint, load_texts, tokenize
from model.artifact import Artifact

IMPORTS = (
    "import fastapi, numpy, onnxruntime, orjson, prometheus_client, pydantic_settings, tokenizers, uvicorn, uvloop"
)
CONNECTIONS = 4  # requests under way: few enough that no long text has to be refused
Start = tuple[float, dict[str, float]]  # seconds until it was ready, or had ended; megabytes by kind


def start_service(artifact: Path, requests: Sequence[Request]) -> Start:
    """The service until `/readyz` answers 200, its memory then, and after these requests if there are any.

    Raises:
        CannotMeasure: an answer is none, or has another status than 200.
    """
    with polyhead(artifact, {}) as server:
        held = {"resident_mb": server.resident_bytes(), "pss_mb": server.pss_bytes()}
        if requests:
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                list(pool.map(partial(fetch_body, server.address), requests))
            held |= {"pss_after_mb": server.pss_bytes(), "files_after_mb": server.pss_bytes("Pss_File")}
        return server.ready_after, {name: size / 1e6 for name, size in held.items()}


def start_python(code: str) -> Start:
    """An interpreter that runs something and ends."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own interpreter and code
    return time.perf_counter() - began, {}


@program
def startup() -> None:
    """How long from the start of the process until it is ready for traffic, and what does it hold in memory then?

    Alternately with it, what no start can avoid: a bare interpreter, and one that only imports what the service
    imports. The files are in the page cache after the first run, which is dropped. With `--requests N` each service
    then answers N texts of many lengths, one a request, and its memory is read again: engines keep buffers and kernels
    by shape. PSS counts a page that several processes hold once; files are what is mapped, libraries and weights.
    """
    takes = "about a quarter of a minute an artifact, and with --requests as long as they do"
    parser = parser_of(startup.__doc__, takes=takes, rounds=7)
    parser.add_argument("model", type=Path, nargs="+", metavar="DIR", help="artifacts to start the service with")
    parser.add_argument("--requests", type=whole, metavar="N", help="texts that each service answers once it is ready")
    arguments = parser.parse_args()
    starts: dict[str, Callable[[], Start]] = {
        "interpreter alone": partial(start_python, "pass"),
        "interpreter and imports": partial(start_python, IMPORTS),
    }
    texts = load_texts("mixed", arguments.requests) if arguments.requests else []
    for directory in arguments.model:
        rows = tokenize(Artifact.open(directory), texts)  # a folder that is no artifact fails before any start
        requests = encode_requests(texts, rows, 1) if texts else []
        starts[f"ready, {directory}"] = partial(start_service, directory, requests)
    table = Table("startup", "seconds from the process' start")
    for name, runs in in_turns(starts, arguments.rounds).items():
        spread = Spread.of([seconds for seconds, _ in runs])
        held = {kind: median([memory[kind] for _, memory in runs]) for kind in runs[0][1]}
        table.add(start=name, seconds=spread.median, lowest=spread.lowest, highest=spread.highest, **held)
    emit("service startup", [table], requests=arguments.requests)


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
                ways[f"{count} x {workers // count}"] = over_http(server, requests, CONNECTIONS, arguments.seconds)
        title = f"processes x workers; a model that waits {1000 * TEXT_SECONDS:g} ms a text, {CONNECTIONS} connections"
        table = compare(title, ways, arguments.rounds)
    rates = {row["way"]: row["requests_per_s"] for row in table.rows}
    for row in table.rows:
        processes, each = map(int, row["way"].split(" x "))
        row["times_one"] = row["requests_per_s"] / rates[f"1 x {processes * each}"]
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
def processes() -> None:
    """What do several processes behind one port give, how do they share connections, and what memory do they take?

    Requests a second are those of a model that waits instead of computing, so that a machine of two cores has sixteen
    "cores" for it: what is left to measure is what event loops carry. The load generator runs on the same cores. The
    parent shares out connections; beside it stands the kernel's own way, `SO_REUSEPORT`, with plain sockets. Memory is
    that of the real model; PSS counts what processes share once.
    """
    parser = parser_of(processes.__doc__, "model", takes="about three minutes", seconds=4.0, rounds=3)
    parser.add_argument("--processes", type=whole, nargs="+", default=[1, 2, 4], help="numbers of them")
    parser.add_argument("--workers", type=whole, nargs="+", default=[4, 8, 16], help="of all processes together")
    parser.add_argument("--clients", type=whole, nargs="+", default=[2, 4, 16], help="connections that stay")
    arguments = parser.parse_args()
    arguments.processes = sorted({1, *arguments.processes})  # 1 is what the others are compared with
    artifact, texts = Artifact.open(arguments.model), load_texts("short", 640)
    requests = encode_requests(texts, tokenize(artifact, texts), 1)
    tables = [measure_rates(arguments, requests), measure_balance(arguments), measure_memory(arguments, requests)]
    emit("service processes", tables, texts=fingerprint(texts))
