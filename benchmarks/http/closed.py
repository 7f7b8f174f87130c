"""What does the service give to clients that ask as fast as they are answered, and how much of the engine is that?

A closed loop over keep-alive connections with one and with several texts a request, in turns with the engine alone on
the same texts. The load generator runs on the same cores as the server; what it takes is printed.
"""

import argparse
from functools import partial

from benchmarks.lib.command import parser_of, program
from benchmarks.lib.comparison import add_http_arguments, compare, engine_ways, http_name, http_ways, ratios
from benchmarks.lib.engines import Engine, all_layouts
from benchmarks.lib.payloads import check_vectors, encode_requests, fetch
from benchmarks.lib.report import emit
from benchmarks.lib.server import add_server_arguments, open_server
from benchmarks.lib.texts import fingerprint, load_texts
from benchmarks.lib.tokens import standard_plans, tokenize


@program
def main() -> None:
    """Starts the server, checks its answers, measures, prints."""
    arguments = _parse()
    texts = load_texts(arguments.corpus, arguments.texts, arguments.seed)
    engine = Engine.open(arguments.model, all_layouts())
    rows = tokenize(engine.artifact, texts)
    make = partial(encode_requests, texts, rows)
    with open_server(arguments) as server:
        check_vectors(fetch(server, make(4)[0])["embeddings"], engine.pooled(rows[:4]))
        ways = engine_ways(engine, rows, standard_plans(rows)) | http_ways(server, make, arguments)
        print(f"{len(ways)} ways, {arguments.rounds} rounds and one of warm-up", flush=True)
        title = f"{arguments.corpus} texts, {arguments.connections} connections"
        table = compare("rates", title, ways, arguments.rounds)
    pairs = [((http_name(count),), (engine.name,)) for count in arguments.texts_per_request]
    shares = ratios("service_over_engine", "service over the engine's best", pairs, table)
    mean = sum(map(len, rows)) / len(rows)
    settings = {"server_settings": arguments.set, "precision": engine.artifact.manifest.precision}
    emit("http closed", [table, shares], texts=fingerprint(texts), mean_tokens=mean, **settings)


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="about three minutes")
    add_server_arguments(parser)
    add_http_arguments(parser)
    return parser.parse_args()
