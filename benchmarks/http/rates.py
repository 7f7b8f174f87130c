"""Closed loops of requests over keep-alive connections: the service compared with its engine, parts and versions."""

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.lib.command import LOAD, CannotMeasure, parser_of, program
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
from benchmarks.lib.report import Table, emit
from benchmarks.lib.server import polyhead
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
