"""How does this project compare with Infinity, sentence-transformers and OpenVINO on this machine?

One run, the same texts, the same weights, the same cores, each in turn. Peers are installed on first use, each in an
environment of its own; one that cannot be installed here is skipped with a word. Everyone gets several ways to use the
cores and to batch, and is judged by the best of them. A server that is not being measured is stopped meanwhile, so that
its idle loops cost nobody anything. Vectors are compared first: a fast wrong answer does not count.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from numpy.typing import ArrayLike

from benchmarks.lib.client import Request
from benchmarks.lib.command import CannotMeasure, new_file, parser_of, program
from benchmarks.lib.comparison import (
    Sample,
    Way,
    Words,
    add_http_arguments,
    compare,
    engine_ways,
    http_name,
    http_ways,
    ratios,
)
from benchmarks.lib.engines import Engine, all_layouts
from benchmarks.lib.payloads import WrongAnswer, check_vectors, encode_requests, fetch, requests_of
from benchmarks.lib.report import emit
from benchmarks.lib.server import Server, ServerFailed, free_port, polyhead, started
from benchmarks.lib.texts import fingerprint, load_texts
from benchmarks.lib.tokens import TokenIds, standard_plans, tokenize
from benchmarks.lib.weights import add_weights_argument, checkpoint_folder
from benchmarks.peers.environments import INFINITY, OPENVINO, SENTENCE_TRANSFORMERS, Environment, NotInstallable
from benchmarks.peers.picture import draw_peers
from benchmarks.peers.process import QUIET, PeerFailed, start_worker
from benchmarks.peers.worker import Task

SKIPPING = (NotInstallable, PeerFailed, ServerFailed, WrongAnswer)
INFINITY_ROUTE = "/embeddings"
INFINITY_FLAGS = ("--bettertransformer", "--no-bettertransformer")  # the first is its default
PEER_ENGINES = {
    "OpenVINO bf16": ("OpenVINO bf16",),
    "OpenVINO f32": ("OpenVINO f32",),
    "sentence-transformers, sorted batches": ("sentence-transformers forward",),
    "sentence-transformers encode()": ("sentence-transformers encode",),
}


@dataclass
class Run:
    """What every peer of one run shares.

    Attributes:
        arguments: the command line.
        engines: this project's artifacts; the first one's vectors are what all others are compared with.
        texts: what is encoded.
        rows: the texts' token ids.
        weights: folder of the checkpoint.
        stack: ends servers and workers with the run.
        skipped: why a peer is missing, by name.
        versions: of the peers that are not.
    """

    arguments: argparse.Namespace
    engines: list[Engine]
    texts: list[str]
    rows: list[TokenIds]
    weights: Path
    stack: ExitStack
    skipped: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def check(self, vectors: ArrayLike) -> None:
        """Compares someone's vectors of the first four texts with the engine's."""
        check_vectors(vectors, self.engines[0].pooled(self.rows[:4]))

    def attempt(self, name: str, make: Callable[[], dict[str, Way]]) -> dict[str, Way]:
        """A peer's ways, or none and the reason why."""
        try:
            return make()
        except SKIPPING as error:
            self.skipped[name] = str(error)
            print(f"skipping {name}: {error}", flush=True)
            return {}

    def prepare(self, environment: Environment) -> Path:
        """A peer's interpreter; notes its versions."""
        python = environment.python(self.arguments.cache)
        self.versions[environment.name] = environment.versions(self.arguments.cache)
        return python


def worker_ways(run: Run, name: str, environment: Environment, module: str) -> dict[str, Way]:
    """A peer without HTTP, in a process of its own."""
    cores = len(os.sched_getaffinity(0))
    task = Task(str(run.weights), cores, run.texts, run.rows, standard_plans(run.rows))
    peer = run.stack.enter_context(start_worker(run.prepare(environment), module, task))
    run.check(peer.vectors())
    return peer.ways(name)


def service_ways(run: Run, directory: Path, engine: Engine) -> dict[str, Way]:
    """This project's service on one artifact."""
    server = run.stack.enter_context(polyhead(directory, {}))
    make = partial(encode_requests, run.texts, run.rows)
    run.check(fetch(server, make(4)[0])["embeddings"])
    return paused_ways(f"Polyhead {engine.artifact.manifest.precision}", server, make, run.arguments)


def infinity_ways(run: Run, flag: str) -> dict[str, Way]:
    """Infinity's torch engine, with or without BetterTransformer."""
    python, port = run.prepare(INFINITY), free_port()
    flags = f"--engine torch --device cpu --dtype float32 --host 127.0.0.1 --port {port} --log-level error {flag}"
    command = [str(python.with_name("infinity_emb")), "v2", *flags.split(), "--model-id", str(run.weights)]
    environment = {**QUIET, "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    server = run.stack.enter_context(started(command, port, "/health", environment))
    make = partial(infinity_requests, run)
    run.check([item["embedding"] for item in fetch(server, make(4)[0])["data"]])
    return paused_ways(f"Infinity {flag}", server, make, run.arguments)


def infinity_requests(run: Run, count: int) -> list[Request]:
    """Requests of `count` texts each to Infinity's OpenAI route."""
    return requests_of(INFINITY_ROUTE, run.texts, run.rows, count, lambda part: {"input": part})


def paused_ways(
    name: str, server: Server, make: Callable[[int], Sequence[Request]], arguments: argparse.Namespace
) -> dict[str, Way]:
    """A server's ways under its name; it is stopped whenever none of them is being measured."""
    ways = http_ways(server, make, arguments)
    server.pause()
    return {f"{name}, {way}": partial(resumed, server, measure) for way, measure in ways.items()}


def resumed(server: Server, way: Way) -> Sample:
    """Measures a way of a paused server."""
    server.resume()
    try:
        return way()
    finally:
        server.pause()


def ratios_to_report(run: Run) -> list[tuple[Words, Words]]:
    """Which groups are held against which: over HTTP by texts a request, engines by precision."""
    precisions = [engine.artifact.manifest.precision for engine in run.engines]
    over_infinity: list[tuple[Words, Words]] = [
        ((f"Polyhead {precision}", http_name(count)), (f"Infinity {flag}", http_name(count)))
        for count in run.arguments.texts_per_request
        for precision in precisions
        for flag in INFINITY_FLAGS
    ]
    return over_infinity + [((engine.name,), peer) for engine in run.engines for peer in PEER_ENGINES.values()]


@contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[Run]:
    """The artifacts, the texts, and a stack for everything that is started.

    Raises:
        CannotMeasure: two artifacts are of one precision.
    """
    engines = Engine.open_all(arguments.model, all_layouts())
    precisions = [engine.artifact.manifest.precision for engine in engines]
    if len(set(precisions)) < len(precisions):
        raise CannotMeasure(f"artifacts of {', '.join(precisions)}: services go by precision, so give one of each")
    folders = [checkpoint_folder(arguments.weights, engine.artifact) for engine in engines]
    texts = load_texts(arguments.corpus, arguments.texts, arguments.seed)
    with ExitStack() as stack:
        yield Run(arguments, engines, texts, tokenize(engines[0].artifact, texts), folders[0].path, stack)


def collect(run: Run) -> tuple[dict[str, Way], dict[str, Way]]:
    """Ways of all engines, and of all servers; whoever cannot be had here is skipped."""
    engines, servers = dict[str, Way](), dict[str, Way]()
    plans = standard_plans(run.rows)
    for directory, engine in zip(run.arguments.model, run.engines, strict=True):
        engines |= engine_ways(engine, run.rows, plans)
        servers |= service_ways(run, directory, engine)
    workers = (
        ("OpenVINO", OPENVINO, "benchmarks.peers.openvino_worker"),
        ("sentence-transformers", SENTENCE_TRANSFORMERS, "benchmarks.peers.sentence_transformers_worker"),
    )
    for name, environment, module in workers:
        engines |= run.attempt(name, partial(worker_ways, run, name, environment, module))
    for flag in INFINITY_FLAGS:
        servers |= run.attempt(f"Infinity {flag}", partial(infinity_ways, run, flag))
    return engines, servers


@program
def main() -> None:
    """Prepares everyone, measures in turns, prints rates and ratios."""
    arguments = _parse()
    with opened(arguments) as run:
        engines, servers = collect(run)
        print(f"{len(engines) + len(servers)} ways, {arguments.rounds} rounds and one of warm-up", flush=True)
        title = f"{arguments.corpus} texts, {arguments.connections} connections"
        table = compare("rates", title, {**engines, **servers}, arguments.rounds)
        ratio = ratios("ratios", "best over best, tokens/s", ratios_to_report(run), table)
    for name, versions in run.versions.items():
        print(f"{name}: {versions}")
    emit("peers encode", [table, ratio], peers=run.versions, skipped=run.skipped, texts=fingerprint(run.texts))
    if arguments.plot:
        ours = {f"Polyhead {engine.artifact.manifest.precision}": engine.name for engine in run.engines}
        infinity = [f"Infinity {flag}" for flag in INFINITY_FLAGS]
        arguments.plot.write_text(draw_peers(table, ours, PEER_ENGINES, infinity, arguments.texts_per_request))


def _parse() -> argparse.Namespace:
    parser = parser_of(
        __doc__,
        takes="about a quarter of an hour on two cores, and before that, once, to install the peers (gigabytes)",
    )
    parser.add_argument("model", type=Path, nargs="+", metavar="DIR", help="artifacts of one checkpoint, any precision")
    add_weights_argument(parser)
    parser.add_argument(
        "--cache", type=Path, default=Path("build/peers"), help="where the peers' environments are kept"
    )
    parser.add_argument("--plot", type=new_file, metavar="SVG", help="draw the best of each there")
    add_http_arguments(parser)
    return parser.parse_args()
