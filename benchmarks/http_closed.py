"""What does the service give to clients that ask as fast as they are answered, and how much of the engine is that?

A closed loop over keep-alive connections with one and with several texts a request, in turns with the engine alone on
the same texts. The load generator runs on the same cores as the server; what it takes is printed.
"""

import argparse

from benchmarks.comparison import Way, compare, over_http, over_passes, rate_of
from benchmarks.engines import Engine, all_layouts
from benchmarks.payloads import check_vectors, encode_requests, fetch
from benchmarks.report import Table, emit
from benchmarks.server import Server, add_server_arguments, open_server
from benchmarks.texts import fingerprint, load_texts
from benchmarks.tokens import TokenIds, make_batch, one_at_a_time, sorted_by_length, tokenize

SORTED_TOKENS = 1024  # padded tokens a batch of the engine's own batching


def engine_ways(engine: Engine, rows: list[TokenIds]) -> dict[str, Way]:
    """The engine alone on all the texts: one at a time, and sorted into batches, under every layout."""
    work = {"one text a run": one_at_a_time(rows), "sorted batches": sorted_by_length(rows, SORTED_TOKENS)}
    return {
        f"engine, {name}, {layout}": over_passes(engine.runner(batches, layout))
        for name, batches in work.items()
        for layout in engine.backends
    }


def http_ways(server: Server, texts: list[str], rows: list[TokenIds], arguments: argparse.Namespace) -> dict[str, Way]:
    """The service, with each of the wanted numbers of texts a request."""
    return {
        http_way(count): over_http(
            server, encode_requests(texts, rows, count), arguments.connections, arguments.seconds
        )
        for count in arguments.texts_per_request
    }


def http_way(count: int) -> str:
    """Name of the way with this many texts a request."""
    return f"HTTP, {count} {'text' if count == 1 else 'texts'} a request"


def check(server: Server, engine: Engine, texts: list[str], rows: list[TokenIds]) -> None:
    """Makes sure that the service returns the engine's vectors of these texts."""
    backend = next(iter(engine.backends.values()))
    expected = backend.run(make_batch(rows[:4])).pooled
    check_vectors(fetch(server, encode_requests(texts, rows, 4)[0])["embeddings"], expected)


def shares(table: Table, arguments: argparse.Namespace) -> Table:
    """Each HTTP rate over the engine's best."""
    best = max((row for row in table.rows if row["way"].startswith("engine")), key=lambda row: row["tokens_per_s"])
    found = Table("service_over_engine", "service over engine", ("way", "engine", "share_%"))
    for count in arguments.texts_per_request:
        share = 100 * rate_of(table, http_way(count)) / best["tokens_per_s"]
        found.add(**{"way": http_way(count), "engine": best["way"], "share_%": share})
    return found


def main() -> None:
    """Starts the server, checks its answers, measures, prints."""
    arguments = _parse()
    texts = load_texts(arguments.corpus, arguments.texts, arguments.seed)
    engine = Engine.open(arguments.model, all_layouts())
    rows = tokenize(engine.artifact, texts)
    with open_server(arguments) as server:
        check(server, engine, texts, rows)
        ways = engine_ways(engine, rows) | http_ways(server, texts, rows, arguments)
        print(f"{len(ways)} ways, {arguments.rounds} rounds and one of warm-up", flush=True)
        title = f"{arguments.corpus} texts, {arguments.connections} connections"
        table = compare("rates", title, ways, arguments.rounds)
    mean = sum(map(len, rows)) / len(rows)
    settings = {"server_settings": arguments.set, "precision": engine.artifact.manifest.precision}
    emit("http_closed", [table, shares(table, arguments)], texts=fingerprint(texts), mean_tokens=mean, **settings)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What does the service give over HTTP, and what share of the engine?")
    add_server_arguments(parser)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--texts-per-request", type=int, nargs="+", default=[1, 32], metavar="N")
    parser.add_argument("--corpus", choices=("short", "mixed"), default="short")
    parser.add_argument("--texts", type=int, default=640, help="different texts")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each measurement over HTTP")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds; one more warms up")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
