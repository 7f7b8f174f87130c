"""Is the service of one checkout faster than that of another? Their services in turns, under the same closed loop.

Each checkout is a folder with a version of this project; its service is run from there, by this Python, and paused
while another one is measured. Ratios are to the first checkout's. Name the first one twice to see how far runs differ.
"""

import argparse
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.lib.command import CannotMeasure, parser_of, program
from benchmarks.lib.comparison import Way, Words, add_http_arguments, compare, http_name, paused_ways, ratios
from benchmarks.lib.payloads import encode_requests, fetch
from benchmarks.lib.report import emit
from benchmarks.lib.server import add_setting_argument, polyhead, settings_of
from benchmarks.lib.texts import fingerprint, load_texts
from benchmarks.lib.tokens import tokenize
from model.artifact import Artifact


def checkout_ways(
    arguments: argparse.Namespace, names: list[str], texts: list[str], stack: ExitStack
) -> dict[str, Way]:
    """Every checkout's service, started and paused."""
    make = partial(encode_requests, texts, tokenize(Artifact.open(arguments.model), texts))
    ways: dict[str, Way] = {}
    for name, checkout in zip(names, arguments.checkout, strict=True):
        server = stack.enter_context(polyhead(arguments.model, settings_of(arguments), checkout=checkout))
        fetch(server, make(1)[0])  # it answers, and with 200
        ways |= paused_ways(name, server, make, arguments)
    return ways


@program
def main() -> None:
    """Starts every checkout's service, measures in turns, prints rates and ratios."""
    arguments = _parse()
    Artifact.open(arguments.model)  # said before a server is started
    for checkout in arguments.checkout:
        if not (checkout / "service" / "__main__.py").is_file():
            raise CannotMeasure(f"{checkout}: expected a checkout of this project, with service/__main__.py in it")
    names = [f"{index}: {checkout}" for index, checkout in enumerate(arguments.checkout, start=1)]
    texts = load_texts(arguments.corpus, arguments.texts, arguments.seed)
    with ExitStack() as stack:
        ways = checkout_ways(arguments, names, texts, stack)
        title = f"{arguments.corpus} texts, {arguments.connections} connections"
        table = compare("rates", title, ways, arguments.rounds)
    pairs: list[tuple[Words, Words]] = [
        ((name, http_name(count)), (names[0], http_name(count)))
        for name in names[1:]
        for count in arguments.texts_per_request
    ]
    ratio = ratios("ratios", "tokens/s over those of the first checkout", pairs, table)
    emit("http versions", [table, ratio], texts=fingerprint(texts), server_settings=arguments.set)


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="about two minutes a checkout")
    parser.add_argument("checkout", type=Path, nargs="+", metavar="CHECKOUT", help="folders of versions of it")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="artifact that all of them can serve")
    add_setting_argument(parser)
    add_http_arguments(parser)
    return parser.parse_args()
