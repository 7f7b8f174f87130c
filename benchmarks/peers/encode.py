"""How does this project compare with Infinity, sentence-transformers and OpenVINO on this machine?

One run, the same texts, the same weights, the same cores, each in turn. Peers are installed on first use, each in an
environment of its own; one that cannot be installed here is skipped with a word. Everyone gets several ways to use the
cores and to batch, and is judged by the best of them. A server that is not being measured is stopped meanwhile, so that
its idle loops cost nobody anything. Vectors are compared first: a fast wrong answer does not count.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.lib.command import LOAD, new_file, parser_of, program
from benchmarks.lib.comparison import (
    Way,
    Words,
    best_of,
    compare,
    encode_requests,
    engine_ways,
    fetch,
    http_name,
    paused_ways,
    ratios,
    requests_of,
)
from benchmarks.lib.engines import Engine
from benchmarks.lib.load import Request
from benchmarks.lib.report import Table, draw_bars, emit
from benchmarks.lib.server import polyhead
from benchmarks.lib.texts import fingerprint, standard_plans
from benchmarks.peers.infinity import INFINITY_ENGINES, start_infinity
from benchmarks.peers.peers import OPENVINO, SENTENCE_TRANSFORMERS, Environment, Run, add_peer_arguments, opened

# Peers without HTTP: environment, worker and precisions of each.
WORKERS: Mapping[str, tuple[Environment, str, Sequence[str]]] = {
    "OpenVINO": (OPENVINO, "openvino", ("f32", "bf16")),
    "sentence-transformers": (SENTENCE_TRANSFORMERS, "sentence_transformers", ()),
}
PEERS = (*WORKERS, *INFINITY_ENGINES)
PEER_ENGINES: Mapping[str, Words] = {
    "OpenVINO bf16": ("OpenVINO bf16",),
    "OpenVINO f32": ("OpenVINO f32",),
    "sentence-transformers, sorted batches": ("sentence-transformers forward",),
    "sentence-transformers encode()": ("sentence-transformers encode",),
}


def worker_ways(run: Run, name: str) -> dict[str, Way]:
    """A peer without HTTP, one of `WORKERS`."""
    environment, engine, precisions = WORKERS[name]
    peer = run.start(run.peers.prepare(environment), engine, precisions)
    run.check(peer.vectors())
    return peer.ways(name)


def service_ways(run: Run, directory: Path, engine: Engine) -> dict[str, Way]:
    """This project's service on one artifact."""
    server = run.peers.stack.enter_context(polyhead(directory, {}))
    make = partial(encode_requests, run.texts, run.rows)
    run.check(fetch(server, make(4)[0])["embeddings"])
    return paused_ways(f"Polyhead {engine.artifact.manifest.precision}", server, make, run.arguments)


def infinity_ways(run: Run, engine: str) -> dict[str, Way]:
    """Infinity with one of its engines, over its OpenAI route."""
    server = start_infinity(run.peers, run.weights, engine)

    def make(count: int) -> list[Request]:
        return requests_of("/embeddings", run.texts, run.rows, count, lambda part: {"input": part})

    run.check([item["embedding"] for item in fetch(server, make(4)[0])["data"]])
    return paused_ways(f"Infinity {engine}", server, make, run.arguments)


def ratios_to_report(run: Run) -> list[tuple[Words, Words]]:
    """Which groups are held against which: over HTTP by texts a request, engines by precision."""
    precisions = [engine.artifact.manifest.precision for engine in run.engines]
    over_infinity: list[tuple[Words, Words]] = [
        ((f"Polyhead {precision}", http_name(count)), (f"Infinity {engine}", http_name(count)))
        for count in run.arguments.texts_per_request
        for precision in precisions
        for engine in INFINITY_ENGINES
    ]
    return over_infinity + [((engine.name,), peer) for engine in run.engines for peer in PEER_ENGINES.values()]


def collect(run: Run) -> tuple[dict[str, Way], dict[str, Way]]:
    """Ways of all engines, and of all servers; whoever cannot be had here is skipped."""
    engines, servers = dict[str, Way](), dict[str, Way]()
    plans = standard_plans(run.rows)
    for directory, engine in zip(run.arguments.model, run.engines, strict=True):
        engines |= engine_ways(engine, run.rows, plans)
        servers |= service_ways(run, directory, engine)
    for name in run.arguments.peers:
        if name in WORKERS:
            engines |= run.peers.attempt(name, partial(worker_ways, run, name))
        else:
            servers |= run.peers.attempt(f"Infinity {name}", partial(infinity_ways, run, name))
    return engines, servers


@program
def main() -> None:
    """Prepares everyone, measures alternately, prints rates and ratios."""
    takes = "about a quarter of an hour on two cores, and before that, once, to install the peers (gigabytes)"
    parser = parser_of(__doc__, takes=takes, **LOAD)
    add_peer_arguments(parser)
    parser.add_argument("--peers", choices=PEERS, nargs="+", default=PEERS, help="who is measured, Infinity by engine")
    parser.add_argument("--plot", type=new_file, metavar="SVG", help="draw the best of each there")
    arguments = parser.parse_args()
    with opened(arguments) as run:
        engines, servers = collect(run)
        title = f"short texts, {arguments.connections} connections"
        table = compare(title, {**engines, **servers}, arguments.rounds)
        ratio = ratios("ratios", "best over best, tokens/s", ratios_to_report(run), table)
    if arguments.plot:
        draw(arguments.plot, run, table)
    peers = {"peers": run.peers.versions, "skipped": run.peers.skipped}
    emit("peers encode", [table, ratio], **peers, texts=fingerprint(run.texts))


def draw(path: Path, run: Run, table: Table) -> None:
    """Draws everyone's best rate, without HTTP and over it."""
    ours: dict[str, Words] = {f"Polyhead {one.artifact.manifest.precision}": (one.name,) for one in run.engines}
    panels: dict[str, Mapping[str, Words]] = {"Tokens a second, without HTTP": {**ours, **PEER_ENGINES}}
    for way in map(http_name, run.arguments.texts_per_request):
        names = (*ours, *(f"Infinity {engine}" for engine in INFINITY_ENGINES))
        panels[f"Tokens a second, {way}"] = {name: (name, way) for name in names}
    found = {
        title: {label: best[1] for label, words in groups.items() if (best := best_of(table, words))}
        for title, groups in panels.items()
    }
    draw_bars(path, found, [*ours])
