"""The service over HTTP: as fast as it answers, at given rates, and when clients ask for more than it has."""

import os
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.lib.command import LOAD, CannotMeasure, not_negative, parser_of, positive, program, whole
from benchmarks.lib.comparison import (
    Engine,
    Way,
    Words,
    check_vectors,
    compare,
    encode_requests,
    fetch,
    http_name,
    http_ways,
    over_http,
    ratios,
)
from benchmarks.lib.load import Address, Request, Tally, poisson_schedule, run_closed_loop, run_open_loop, sum_up
from benchmarks.lib.report import Spread, Table, draw, emit, in_turns, percentiles
from benchmarks.lib.server import Server, free_port, polyhead
from benchmarks.lib.texts import fingerprint, load_texts, tokenize
from model.artifact import Artifact


@program
def closed() -> None:
    """What does the service give to clients that ask as fast as they are answered, and how much of the engine is that?

    A closed loop over keep-alive connections with one and with several texts a request, alternately with the engine
    alone on the same texts. The load generator runs on the same cores as the server; what it takes is printed.
    """
    arguments = parser_of(closed.__doc__, "model", takes="about three minutes", **LOAD).parse_args()
    engine = Engine.open(arguments.model, provider=os.environ.get("POLYHEAD_PROVIDER", "cpu"))
    texts = load_texts("short", arguments.texts)
    rows = tokenize(engine.artifact, texts)
    make = partial(encode_requests, texts, rows)
    with polyhead(arguments.model, {}) as server:
        check_vectors(fetch(server.address, make(4)[0])["embeddings"], engine.pooled(rows[:4]))
        ways = engine.ways(rows) | http_ways("service", server, make, arguments)
        table = compare(f"short texts, {arguments.connections} connections", ways, arguments.rounds)
    pairs = [((f"service, {http_name(count)}",), ("Polyhead",)) for count in arguments.texts_per_request]
    shares = ratios("service over the engine's best", pairs, table)
    described = {"mean_tokens": sum(map(len, rows)) / len(rows), "precision": engine.precision}
    emit("http closed", [table, shares], texts=fingerprint(texts), **described)


@program
def versions() -> None:
    """Is the service of one checkout faster than another checkout's? Both alternately, under the same closed loop.

    Each checkout is a folder with a version of this project; its service is run from there, by this Python, and paused
    while another one is measured. Ratios are to the first checkout's. Name the first one twice to see how far runs
    differ.
    """
    parser = parser_of(versions.__doc__, "model", takes="about two minutes a checkout", **LOAD)
    parser.add_argument("checkout", type=Path, nargs="+", metavar="CHECKOUT", help="folders of versions of it")
    arguments = parser.parse_args()
    artifact = Artifact.open(arguments.model)
    names = [f"{index}: {checkout}" for index, checkout in enumerate(arguments.checkout, start=1)]
    texts = load_texts("short", arguments.texts)
    make = partial(encode_requests, texts, tokenize(artifact, texts))
    with ExitStack() as stack:
        ways: dict[str, Way] = {}
        for name, checkout in zip(names, arguments.checkout, strict=True):
            if not (checkout / "service" / "__main__.py").is_file():  # Python would run this version instead
                raise CannotMeasure(f"{checkout}: expected a checkout of this project, with service/__main__.py in it")
            server = stack.enter_context(polyhead(arguments.model, {}, checkout=checkout))
            fetch(server.address, make(1)[0])  # it answers, and with 200
            ways |= http_ways(name, server, make, arguments)
        table = compare(f"short texts, {arguments.connections} connections", ways, arguments.rounds)
    counts = [http_name(count) for count in arguments.texts_per_request]
    pairs: list[tuple[Words, Words]] = [((name, count), (names[0], count)) for name in names[1:] for count in counts]
    ratio = ratios("tokens/s over the first checkout's", pairs, table)
    emit("http versions", [table, ratio], texts=fingerprint(texts))


@program
def cost() -> None:
    """What does a request of one text cost, and what of that is HTTP, what is ours, what is the model?

    Processor time a request of three servers, alternately, under the same closed loop: one that only speaks HTTP, the
    service with a model that computes nothing, and the service. Python's part takes longer beside a model than alone,
    since the products evict it from the cores' caches.
    """
    load = {"connections": 16, "texts": 640, "seconds": 5.0, "rounds": 3}
    arguments = parser_of(cost.__doc__, "model", takes="about a minute", **load).parse_args()
    texts = load_texts("short", arguments.texts)
    requests = encode_requests(texts, tokenize(Artifact.open(arguments.model), texts), 1)
    servers = {
        "HTTP alone": ("benchmarks.http.servers", "bare"),
        "the service without a model": ("benchmarks.http.servers", "no-model"),
        "the service": ("service",),
    }
    with ExitStack() as stack:
        ways = {}
        for name, command in servers.items():
            server = stack.enter_context(polyhead(arguments.model, {}, program=command))
            ways[name] = over_http(server, requests, arguments.connections, arguments.seconds)
        title = f"processor time a request, {arguments.connections} connections"
        rates = compare(title, ways, arguments.rounds)
    table = Table("cost", title)
    for row in rates.rows:
        cells = {kind: row[kind] for kind in ("way", "requests_per_s")}
        spent = {f"{who}_us": 1e6 * row[f"{who}_cores"] / row["requests_per_s"] for who in ("server", "client")}
        table.add(**cells, **spent)
    emit("http cost", [table], texts=fingerprint(texts))


CONNECTIONS = 4096  # most requests under way at once
CLOSED_CONNECTIONS = 64  # of the closed loop that finds the sustainable rate
WARMUP = 2.0  # seconds of a flood or a storm before it counts: the queue fills, pauses grow
OTHER, RATE = "other", 30.0  # the second model's name, and requests a second to it
PROBE_INTERVAL = 0.1  # seconds
WHAT_IS_DRAWN = {
    "Answers a second": {"answered": "goodput_per_s"},
    "Probes on new connections, p99 in ms": {"first port": "probe_p99_ms", "admin port": "admin_p99_ms"},
}
PROBE = Request(b"GET /healthz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n", texts=0, tokens=0)

Storm = tuple[Tally, list[Tally], float]  # answers, probes of each port, cores of the server


@program
def at_rates() -> None:
    """What latency do clients see at a given rate, and what becomes of the service when they ask for more than it has?

    Arrivals are Poisson and wait for nobody; latency counts from the time a request was due. The rates are shares of
    the sustainable rate, which a closed loop finds first: below it for latency, far above it for overload. Past its
    limit a good service refuses quickly (429 with Retry-After), keeps its goodput, and answers what it accepted as
    quickly as before.
    """
    parser = parser_of(at_rates.__doc__, "model", takes="about two and a half minutes", seconds=20.0, texts=2000)
    parser.add_argument("--share", type=positive, nargs="+", default=[0.5, 0.8, 3.0], help="of the sustainable rate")
    parser.add_argument("--warmup", type=not_negative, default=10.0, help="seconds before a load counts: queues fill")
    arguments = parser.parse_args()
    texts = load_texts("short", arguments.texts)
    requests = encode_requests(texts, tokenize(Artifact.open(arguments.model), texts), 1)
    table = Table("open_loop", "short texts, one a request, Poisson arrivals")
    with polyhead(arguments.model, {}) as server:
        fetch(server.address, requests[0])  # it answers, and with 200
        load = partial(run_closed_loop, server.address, requests, connections=CLOSED_CONNECTIONS)
        rates = [load(seconds=arguments.seconds / 2).rates()["requests_per_s"] for _ in range(4)]
        sustainable = Spread.of(rates[1:])
        if not sustainable.lowest:
            raise CannotMeasure("no request of the closed loop was answered: raise --seconds, or see the server's log")
        print(f"sustainable: {sustainable.median:.0f} requests/s ({sustainable})", flush=True)
        for share in tqdm(arguments.share, desc="measuring", unit="load", leave=False, disable=None):
            row = offer(server, requests, share * sustainable.median, arguments)
            of_most = {"of_sustainable_%": 100 * row["goodput_per_s"] / sustainable.median}
            table.add(offered=f"{share:g} x sustainable", **row, **of_most)
    emit("http open", [table], sustainable_per_s=sustainable.median, texts=fingerprint(texts))


def offer(server: Server, requests: Sequence[Request], rate: float, arguments: Namespace) -> dict[str, Any]:
    """Offers a number of requests a second: shares of the due requests, goodput, latency of the accepted ones."""
    schedule = poisson_schedule(rate, arguments.warmup + arguments.seconds)
    count = server.count_cores()
    run = run_open_loop(server.address, requests, schedule, connections=CONNECTIONS, warmup=arguments.warmup)
    due = run.due.statuses.total()
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
        "server_cores": count(),
    }


@program
def neighbours() -> None:
    """What do clients of one model notice while another model of the same process is flooded?

    One service has two models. Requests to the second one arrive at random times, however slow the answers are. 64
    clients of the first one ask again as soon as they are answered, 32 texts a request, from a process of their own.
    Both ways are measured alternately.
    """
    parser = parser_of(neighbours.__doc__, "model", takes="a minute and a half", seconds=8.0, rounds=3)
    parser.add_argument("--other", type=Path, required=True, metavar="DIR", help="artifact whose latency is measured")
    arguments = parser.parse_args()
    first, second = Artifact.open(arguments.model), Artifact.open(arguments.other)
    texts = load_texts("short", 640)
    flood = encode_requests(texts, tokenize(first, texts), 32, {"model": first.manifest.model})
    requests = encode_requests(texts, tokenize(second, texts), 1, {"model": OTHER})
    settings = {"POLYHEAD_MORE_MODELS": f"{OTHER}={arguments.other.resolve()}"}
    with polyhead(arguments.model, settings) as server:
        measure = partial(_beside_flood, server, requests, arguments.seconds)
        ways = {"idle": partial(measure, []), "flooded": partial(measure, flood)}
        results = in_turns(ways, arguments.rounds)
    table = Table("neighbours", f"the second model, {RATE:g} requests/s of one text")
    for name, measured in results.items():
        seen, flooding = (sum_up(tallies) for tallies in zip(*measured, strict=True))
        of_flood = {f"flood_{kind}": flooding[kind] for kind in ("answered", "refused")}
        table.add(first_model=name, **seen, **of_flood)
    emit("http neighbours", [table], texts=fingerprint(texts))


def _beside_flood(
    server: Server, requests: Sequence[Request], seconds: float, flood: Sequence[Request]
) -> tuple[Tally, Tally]:
    """The second model's answers and the first one's. If `flood` is empty, the first model is idle."""
    schedule = poisson_schedule(RATE, WARMUP + seconds)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        if flood:
            load = partial(run_closed_loop, connections=64, seconds=seconds, warmup=WARMUP)
            flooding = pool.submit(load, server.address, flood)
        run = run_open_loop(server.address, requests, schedule, connections=256, warmup=WARMUP)
        return run.due, flooding.result() if flood else Tally(seconds)


@program
def storm() -> None:
    """What is left of the service while clients that are refused ask again at once, and do probes get through?

    A closed loop of more and more clients that stay connected and send the next request as soon as they are answered,
    429 or not. Meanwhile two processes probe, one the first port, one the admin port: `GET /healthz` on a new
    connection every tenth of a second, counted from when it was due; a slow probe holds up no other. Load generator and
    probes run on the server's cores.
    """
    parser = parser_of(storm.__doc__, "model", "plot", takes="about two minutes", seconds=8.0, rounds=2)
    parser.add_argument("--clients", type=whole, nargs="+", default=[16, 64, 128, 512, 2000], help="ascending")
    arguments = parser.parse_args()
    texts, admin = load_texts("short", 2000), free_port()
    requests = encode_requests(texts, tokenize(Artifact.open(arguments.model), texts), 1)
    with polyhead(arguments.model, {"POLYHEAD_ADMIN_PORT": str(admin)}) as server:
        measure = partial(_storm, server, admin, requests, arguments.seconds)
        results = in_turns({count: partial(measure, count) for count in arguments.clients}, arguments.rounds, warmup=0)
    table = Table("storm", "clients that ask again as soon as they are answered, one text a request")
    rows = [_describe(count, samples, arguments.seconds) for count, samples in results.items()]
    best = max(row["goodput_per_s"] for row in rows)
    for row in rows:
        table.add(**row, **{"of_best_%": 100 * row["goodput_per_s"] / best})
    if arguments.plot is not None:
        panels = {
            title: {name: (rows, column) for name, column in drawn.items()} for title, drawn in WHAT_IS_DRAWN.items()
        }
        draw(arguments.plot, "A storm of retries", panels, "clients", "clients", logarithmic=True)
    emit("http storm", [table], texts=fingerprint(texts))


def _storm(server: Server, admin: int, requests: Sequence[Request], seconds: float, clients: int) -> Storm:
    addresses = [server.address, Address(server.address.host, admin)]
    schedule = np.arange(0, WARMUP + seconds, PROBE_INTERVAL).tolist()
    with ProcessPoolExecutor(len(addresses), mp_context=get_context("spawn")) as pool:
        probe = partial(run_open_loop, requests=[PROBE], schedule=schedule, connections=CONNECTIONS, warmup=WARMUP)
        probing = [pool.submit(probe, address) for address in addresses]
        cores = server.count_cores()
        tally = run_closed_loop(server.address, requests, connections=clients, seconds=seconds, warmup=WARMUP)
        busy = cores()
        return tally, [of_port.result().due for of_port in probing], busy


def _describe(clients: int, samples: Sequence[Storm], seconds: float) -> dict[str, Any]:
    """A row of the table, but for the share of the best."""
    tallies = [tally for tally, _, _ in samples]
    probes = zip(*(by_port for _, by_port, _ in samples), strict=True)
    seen = dict(zip(("probe", "admin"), map(sum_up, probes), strict=True))
    return {
        "clients": clients,
        "goodput_per_s": median([tally.requests / seconds for tally in tallies]),
        "refused_per_s": median([tally.statuses[429] / seconds for tally in tallies]),
        "failed": sum(tally.failed for tally in tallies),
        **{f"{port}_{rank}": found.get(rank) for port, found in seen.items() for rank in ("p50_ms", "p99_ms")},
        "probes_failed": sum(found["sent"] - found["answered"] for found in seen.values()),
        "server_cores": median([busy for _, _, busy in samples]),
        "client_cores": median([tally.client_cpu / seconds for tally in tallies]),
    }
