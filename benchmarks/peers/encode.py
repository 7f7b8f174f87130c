"""How does this project compare with Infinity, sentence-transformers and OpenVINO on this machine?

One run, the same texts, the same weights, the same cores, each in turn. Peers are installed on first use, each in an
environment of its own; one that cannot be installed here is skipped with a word. Everyone gets several ways to use the
cores and to batch, and is judged by the best of them. A server that is not being measured is stopped meanwhile, so that
its idle loops cost nobody anything. Vectors are compared first: a fast wrong answer does not count.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.lib.command import LOAD, new_file, parser_of, program
from benchmarks.lib.comparison import (
    Way,
    Words,
    best_of,
    check_vectors,
    compare,
    encode_requests,
    fetch,
    http_name,
    http_ways,
    ratios,
    requests_of,
)
from benchmarks.lib.engines import Engine
from benchmarks.lib.load import Request
from benchmarks.lib.report import Table, draw_bars, emit
from benchmarks.lib.server import polyhead
from benchmarks.lib.texts import load_texts
from benchmarks.peers.infinity import INFINITY_ENGINES, start_infinity
from benchmarks.peers.peers import CANDIDATES, add_peer_arguments, opened

USUAL = ("OpenVINO f32", "OpenVINO bf16", "sentence-transformers", *INFINITY_ENGINES)
PEER_ENGINES: Mapping[str, Words] = {
    "OpenVINO bf16": ("OpenVINO bf16:",),
    "OpenVINO f32": ("OpenVINO f32:",),
    "sentence-transformers, sorted batches": ("sentence-transformers: forward",),
    "sentence-transformers encode()": ("sentence-transformers: encode",),
}
INFINITYS = [f"Infinity {engine}" for engine in INFINITY_ENGINES]


@program
def main() -> None:
    """Prepares everyone, measures alternately, prints rates and ratios."""
    takes = "about a quarter of an hour on two cores, and before that, once, to install the peers (gigabytes)"
    parser = parser_of(__doc__, takes=takes, **LOAD)
    add_peer_arguments(parser, [*CANDIDATES, *INFINITY_ENGINES], USUAL)
    parser.add_argument("--plot", type=new_file, metavar="SVG", help="draw the best of each there")
    arguments = parser.parse_args()
    with opened(arguments, load_texts("short", arguments.texts)) as run:
        engines = [Engine.open(directory) for directory in run.artifacts.values()]
        expected = engines[0].pooled(run.rows[:4])
        ours = partial(encode_requests, run.texts, run.rows)

        def own_ways(engine: Engine) -> dict[str, Way]:
            server = run.stack.enter_context(polyhead(engine.artifact.directory, {}))
            check_vectors(fetch(server.address, ours(4)[0])["embeddings"], expected)
            return engine.ways(run.rows) | http_ways(f"Polyhead {engine.precision}", server, ours, arguments)

        def theirs(count: int) -> list[Request]:
            return requests_of("/embeddings", run.texts, run.rows, count, lambda part: {"input": part})

        def peer_ways(name: str) -> dict[str, Way]:
            if name in INFINITY_ENGINES:
                server = start_infinity(run, name)
                answer = fetch(server.address, theirs(4)[0])["data"]
                check_vectors([item["embedding"] for item in answer], expected)
                return http_ways(f"Infinity {name}", server, theirs, arguments)
            peer = run.start(name)
            check_vectors(peer.vectors(), expected)
            return peer.ways(name)

        ways = {name: way for engine in engines for name, way in own_ways(engine).items()}
        for name in arguments.peers:
            ways |= run.attempt(name, partial(peer_ways, name))
        table = compare(f"short texts, {arguments.connections} connections", ways, arguments.rounds)
    over_http = [http_name(count) for count in arguments.texts_per_request]
    own: dict[str, Words] = {f"Polyhead {precision}": (f"Polyhead {precision}:",) for precision in run.artifacts}
    pairs: list[tuple[Words, Words]] = [
        ((name, way), (infinity, way)) for way in over_http for name in own for infinity in INFINITYS
    ]
    pairs += [(words, peer) for words in own.values() for peer in PEER_ENGINES.values()]
    if arguments.plot:
        draw(arguments.plot, own, over_http, table)
    emit("peers encode", [table, ratios("best over best, tokens/s", pairs, table)], **run.described())


def draw(path: Path, own: Mapping[str, Words], over_http: Iterable[str], table: Table) -> None:
    """Draws everyone's best rate, without HTTP and over it."""
    panels: dict[str, Mapping[str, Words]] = {"Tokens a second, without HTTP": {**own, **PEER_ENGINES}}
    panels |= {f"Tokens a second, {way}": {name: (name, way) for name in (*own, *INFINITYS)} for way in over_http}
    found = {
        title: {label: best[1] for label, words in groups.items() if (best := best_of(table, words))}
        for title, groups in panels.items()
    }
    draw_bars(path, found, [*own])
