"""What does a request of one text cost, and what of that is HTTP, what is ours, what is the model?

Processor time a request of three servers in turns under the same closed loop: one that only speaks HTTP, the service
with a model that computes nothing, and the service. Python's part takes longer beside a model than alone, since the
products evict it from the cores' caches.
"""

import argparse
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from benchmarks.lib.command import parser_of, positive, program, whole
from benchmarks.lib.comparison import over_http, require_answers
from benchmarks.lib.payloads import encode_requests
from benchmarks.lib.report import Table, emit
from benchmarks.lib.server import Server, free_port, polyhead, started
from benchmarks.lib.texts import fingerprint, load_texts
from benchmarks.lib.timing import Spread, in_turns
from benchmarks.lib.tokens import tokenize
from model.artifact import Artifact


@program
def main() -> None:
    """Starts the servers, measures, prints."""
    arguments = _parse()
    texts = load_texts("short", arguments.texts, 0)
    requests = encode_requests(texts, tokenize(Artifact.open(arguments.model), texts), 1)
    servers = {
        "HTTP alone": _lacking("bare"),
        "the service without a model": _lacking("no-model", "--model", str(arguments.model)),
        "the service": polyhead(arguments.model, {}),
    }
    with ExitStack() as stack:
        ways = {
            name: over_http(stack.enter_context(server), requests, arguments.connections, arguments.seconds)
            for name, server in servers.items()
        }
        results = in_turns(ways, arguments.rounds)
    columns = ("server", "requests_per_s", "server_us", "client_us")
    table = Table("cost", f"processor time a request, {arguments.connections} connections", columns)
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


def _lacking(*arguments: str) -> AbstractContextManager[Server]:
    port = free_port()
    environment = {"POLYHEAD_HOST": "127.0.0.1", "POLYHEAD_PORT": str(port)}
    return started([sys.executable, "-m", "benchmarks.http.servers", *arguments], port, "/readyz", environment)


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="about a minute")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="artifact")
    parser.add_argument("--connections", type=whole, default=16, help="requests under way at any time")
    parser.add_argument("--texts", type=whole, default=640, help="different texts")
    parser.add_argument("--seconds", type=positive, default=5.0, help="length of each measurement")
    parser.add_argument("--rounds", type=whole, default=3, help="measured rounds; one more warms up")
    return parser.parse_args()
