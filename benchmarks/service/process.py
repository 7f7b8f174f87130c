"""The service as a process: its start and memory, also under long load, and several processes behind one port."""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from benchmarks.lib.command import parser_of, positive, program, whole
from benchmarks.lib.comparison import ENCODE, compare, encode_requests, fetch_body, over_http
from benchmarks.lib.load import Request, post, run_closed_loop
from benchmarks.lib.report import Spread, Table, emit, in_turns, slope
from benchmarks.lib.server import Server, polyhead
from benchmarks.lib.texts import fingerprint, load_texts, tokenize
from model.artifact import Artifact

IMPORTS = (
    "import fastapi, numpy, onnxruntime, orjson, prometheus_client, pydantic_settings, tokenizers, uvicorn, uvloop"
)
WARMING = 4  # requests under way: few enough that no long text has to be refused
Start = tuple[float, dict[str, float]]  # seconds until it was ready, or had ended; megabytes by kind


def start_service(artifact: Path, requests: Sequence[Request]) -> Start:
    """The service until `/readyz` answers 200, its memory then, and after these requests if there are any."""
    with polyhead(artifact, {}) as server:
        held = {"resident_mb": server.resident_bytes(), "pss_mb": server.pss_bytes()}
        if requests:
            with ThreadPoolExecutor(WARMING) as pool:
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


TEXT_SECONDS = 0.002  # of a worker for each text
CONNECTIONS = 64  # requests under way at any time


def measure_rates(arguments: Namespace, requests: Sequence[Request]) -> Table:
    """Requests a second by processes and workers, all layouts alternately."""
    with ExitStack() as stack:
        ways = {}
        for workers, count in product(arguments.workers, arguments.processes):
            if workers % count == 0:
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
    """The share of connections that the busiest process has."""
    table = Table("balance", "connections of the busiest process")
    for processes in [count for count in arguments.processes if count > 1]:
        with _waiting(arguments.model, processes, processes) as server:
            for clients in arguments.clients:
                table.add(clients=clients, processes=processes, **{"busiest_%": 100 * _share(server, clients)})
    return table


def _share(server: Server, clients: int) -> float:
    """Of the connections that this opens; a request on each, so that they have arrived."""
    children = server.processes()[1:]
    before = [len(os.listdir(f"/proc/{pid}/fd")) for pid in children]
    with ExitStack() as stack:
        for _ in range(clients):
            client = stack.enter_context(socket.create_connection((server.address.host, server.address.port)))
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: benchmark\r\n\r\n")
            client.recv(1)
        opened = [len(os.listdir(f"/proc/{pid}/fd")) - was for pid, was in zip(children, before, strict=True)]
    return max(opened) / sum(opened)


@program
def processes() -> None:
    """What do several processes behind one port give, and how does their parent share out connections?

    Requests a second are those of a model that waits instead of computing, so that a machine of two cores has sixteen
    "cores" for it: what is left to measure is what event loops carry. The load generator runs on the same cores.
    `service startup` measures what memory they take, if the environment has POLYHEAD_PROCESSES.
    """
    parser = parser_of(processes.__doc__, "model", takes="about three minutes", seconds=4.0, rounds=3)
    parser.add_argument("--processes", type=whole, nargs="+", default=[1, 2, 4], help="numbers that divide --workers")
    parser.add_argument("--workers", type=whole, nargs="+", default=[4, 8, 16], help="of all processes together")
    parser.add_argument("--clients", type=whole, nargs="+", default=[2, 4, 16], help="connections that stay")
    arguments = parser.parse_args()
    arguments.processes = sorted({1, *arguments.processes})  # 1 is what the others are compared with
    artifact, texts = Artifact.open(arguments.model), load_texts("short", 640)
    requests = encode_requests(texts, tokenize(artifact, texts), 1)
    tables = [measure_rates(arguments, requests), measure_balance(arguments)]
    emit("service processes", tables, texts=fingerprint(texts))


def mixed_requests(artifact: Artifact) -> list[Request]:
    """Requests of every kind, shuffled; short texts are the most frequent, as they are in life."""
    short, mixed = load_texts("short", 640), load_texts("mixed", 640)

    def make(texts: Sequence[str], per_request: int, **options: Any) -> list[Request]:
        return encode_requests(texts, tokenize(artifact, texts), per_request, options)

    requests = [
        *make(short, 1),
        *make(short[:320], 32),
        *make(mixed[:200], 1),
        *make(mixed[200:328], 16),
        *make(mixed[328:368], 1, output="tokens"),
        *make(short[:80], 1, attention={"layers": "last"}),
        *make(short[80:112], 4, attention={"layers": "all"}),
        *make(mixed[368:384], 1, attention={"layers": "all", "queries": "cls"}),
        *refused_requests(artifact),
    ]
    random.Random(0).shuffle(requests)  # noqa: S311 - an order, no secret
    return requests


def refused_requests(artifact: Artifact) -> list[Request]:
    """Bodies that the service must refuse with 422 and survive."""
    layers = artifact.manifest.config.num_layers
    bodies: list[dict[str, Any]] = [
        {},
        {"inputs": []},
        {"inputs": "text", "surprise": 1},
        {"inputs": [[artifact.manifest.config.vocab_size]]},
        {"inputs": "text", "attention": {"layers": [layers]}},
    ]
    return [post(ENCODE, body, expects=422) for body in bodies]


def watch(server: Server, interval: float, stop: threading.Event, samples: dict[float, float]) -> None:
    """Reads megabytes by seconds, at once and every `interval` until told to stop; on a terminal they are shown."""
    began = time.monotonic()
    with tqdm(desc="loading", unit="look", leave=False, disable=None) as bar:
        while not samples or not stop.wait(interval):
            held = samples[time.monotonic() - began] = server.resident_bytes() / 1e6
            bar.set_postfix(megabytes=round(held, 1))
            bar.update()


@program
def soak() -> None:
    """Does memory stay flat under long mixed load, and is every request still answered?

    All kinds of requests in turn, as fast as they are answered: single texts, lists, long texts, token vectors,
    attention of one layer and of all, and bodies that must be refused. The server's resident memory is read every few
    seconds; its slope is fitted to the second half, when caches and arenas have seen every shape.
    """
    parser = parser_of(soak.__doc__, "model", takes="an hour", connections=8)
    parser.add_argument("--minutes", type=positive, default=60.0, help="length of the load")
    parser.add_argument("--interval", type=positive, default=5.0, help="seconds between two looks at the memory")
    arguments = parser.parse_args()
    requests = mixed_requests(Artifact.open(arguments.model))
    samples, stop, seconds = dict[float, float](), threading.Event(), 60 * arguments.minutes
    with polyhead(arguments.model, {}) as server, ThreadPoolExecutor(1) as pool:
        ready = server.resident_bytes() / 1e6
        pool.submit(watch, server, arguments.interval, stop, samples)
        try:
            tally = run_closed_loop(
                server.address, requests, connections=arguments.connections, seconds=seconds, warmup=0.0
            )
        finally:
            stop.set()
    times, held, half = [*samples], [*samples.values()], len(samples) // 2
    table = Table("memory", "resident memory of the server, MB")
    rise = 3600 * slope(times[half:], held[half:])
    table.add(**{"at ready": ready, "first": held[0], "peak": max(held), "last": held[-1], "mb_per_hour": rise})
    answers = Table("answers", f"{len(requests)} different requests in turn")
    answers.rows = [{"status": str(status), "answers": count} for status, count in sorted(tally.statuses.items())]
    described = {"failed": tally.failed, **tally.rates(), "samples": {"seconds": times, "megabytes": held}}
    emit("service soak", [table, answers], **described)
