"""Closed loops of requests over keep-alive connections: the service compared with its engine, parts and versions."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.lib.command import LOAD, CannotMeasure, parser_of, program
from benchmarks.lib.comparison import (
    Way,
    Words,
    check_vectors,
    compare,
    encode_requests,
    engine_ways,
    fetch,
    http_name,
    http_ways,
    over_http,
    paused_ways,
    ratios,
    require_answers,
)
from benchmarks.lib.engines import Engine, all_layouts
from benchmarks.lib.report import Spread, Table, emit, in_turns
from benchmarks.lib.server import lacking, polyhead
from benchmarks.lib.texts import fingerprint, load_texts, standard_plans, tokenize
from model.artifact import Artifact


@program
def closed() -> None:
    """What does the service give to clients that ask as fast as they are answered, and how much of the engine is that?

    A closed loop over keep-alive connections with one and with several texts a request, alternately with the engine
    alone on the same texts. The load generator runs on the same cores as the server; what it takes is printed.
    """
    arguments = parser_of(closed.__doc__, "model", "set", takes="about three minutes", **LOAD).parse_args()
    provider = dict(arguments.set).get("POLYHEAD_PROVIDER", "cpu")
    engine = Engine.open(arguments.model, all_layouts(provider), provider=provider)
    texts = load_texts("short", arguments.texts)
    rows = tokenize(engine.artifact, texts)
    make = partial(encode_requests, texts, rows)
    with polyhead(arguments.model, dict(arguments.set)) as server:
        check_vectors(fetch(server, make(4)[0])["embeddings"], engine.pooled(rows[:4]))
        ways = engine_ways(engine, rows, standard_plans(rows)) | http_ways(server, make, arguments)
        table = compare(f"short texts, {arguments.connections} connections", ways, arguments.rounds)
    pairs = [((http_name(count),), (engine.name,)) for count in arguments.texts_per_request]
    shares = ratios("service_over_engine", "service over the engine's best", pairs, table)
    mean = sum(map(len, rows)) / len(rows)
    settings = {"server_settings": arguments.set, "precision": engine.artifact.manifest.precision}
    emit("http closed", [table, shares], texts=fingerprint(texts), mean_tokens=mean, **settings)


@program
def versions() -> None:
    """Is the service of one checkout faster than another checkout's? Both alternately, under the same closed loop.

    Each checkout is a folder with a version of this project; its service is run from there, by this Python, and paused
    while another one is measured. Ratios are to the first checkout's. Name the first one twice to see how far runs
    differ.
    """
    parser = parser_of(versions.__doc__, "model", "set", takes="about two minutes a checkout", **LOAD)
    parser.add_argument("checkout", type=Path, nargs="+", metavar="CHECKOUT", help="folders of versions of it")
    arguments = parser.parse_args()
    artifact = Artifact.open(arguments.model)
    for checkout in arguments.checkout:
        if not (checkout / "service" / "__main__.py").is_file():
            raise CannotMeasure(f"{checkout}: expected a checkout of this project, with service/__main__.py in it")
    names = [f"{index}: {checkout}" for index, checkout in enumerate(arguments.checkout, start=1)]
    texts = load_texts("short", arguments.texts)
    make = partial(encode_requests, texts, tokenize(artifact, texts))
    with ExitStack() as stack:
        ways: dict[str, Way] = {}
        for name, checkout in zip(names, arguments.checkout, strict=True):
            server = stack.enter_context(polyhead(arguments.model, dict(arguments.set), checkout=checkout))
            fetch(server, make(1)[0])  # it answers, and with 200
            ways |= paused_ways(name, server, make, arguments)
        table = compare(f"short texts, {arguments.connections} connections", ways, arguments.rounds)
    pairs: list[tuple[Words, Words]] = [
        ((name, http_name(count)), (names[0], http_name(count)))
        for name in names[1:]
        for count in arguments.texts_per_request
    ]
    ratio = ratios("ratios", "tokens/s over the first checkout's", pairs, table)
    emit("http versions", [table, ratio], texts=fingerprint(texts), server_settings=arguments.set)


@program
def cost() -> None:
    """What does a request of one text cost, and what of that is HTTP, what is ours, what is the model?

    Processor time a request of three servers, alternately, under the same closed loop: one that only speaks HTTP, the
    service with a model that computes nothing, and the service. Python's part takes longer beside a model than alone,
    since the products evict it from the cores' caches.
    """
    load = {"connections": 16, "texts": 640, "seconds": 5.0, "rounds": 3}
    arguments = parser_of(cost.__doc__, "model", takes="about a minute", **load).parse_args()
    artifact, texts = Artifact.open(arguments.model), load_texts("short", arguments.texts)
    requests = encode_requests(texts, tokenize(artifact, texts), 1)
    servers = {
        "HTTP alone": lacking("bare"),
        "the service without a model": lacking("no-model", "--model", str(arguments.model)),
        "the service": polyhead(arguments.model, {}),
    }
    with ExitStack() as stack:
        ways = {
            name: over_http(stack.enter_context(server), requests, arguments.connections, arguments.seconds)
            for name, server in servers.items()
        }
        results = in_turns(ways, arguments.rounds)
    table = Table("cost", f"processor time a request, {arguments.connections} connections")
    for name, samples in results.items():
        require_answers(name, samples)
        rates = [sample.requests_per_s or 0.0 for sample in samples]
        served = [(sample.server_cores or 0.0) / rate for sample, rate in zip(samples, rates, strict=True)]
        sent = [(sample.client_cores or 0.0) / rate for sample, rate in zip(samples, rates, strict=True)]
        table.add(
            server=name,
            requests_per_s=Spread.of(rates).median,
            server_us=1e6 * Spread.of(served).median,
            client_us=1e6 * Spread.of(sent).median,
        )
    emit("http cost", [table], texts=fingerprint(texts))
