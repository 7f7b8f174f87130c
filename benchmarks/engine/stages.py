"""What does each stage give, from the network in PyTorch to the service over HTTP?

One run, the same texts: the encoder in PyTorch, the graph in ONNX Runtime, the service with one and with several texts
a request, and sentence-transformers for comparison.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType

from benchmarks.lib.command import parser_of, program
from benchmarks.lib.comparison import (
    Way,
    Words,
    add_http_arguments,
    check_vectors,
    compare,
    encode_requests,
    engine_ways,
    fetch,
    http_name,
    http_ways,
    ratios,
)
from benchmarks.lib.engines import Engine, add_weights_argument, all_layouts, checkpoint_folder
from benchmarks.lib.report import emit
from benchmarks.lib.server import Server, add_server_arguments, open_server
from benchmarks.lib.texts import fingerprint, load_texts, standard_plans, tokenize
from benchmarks.peers.peers import PeerFailed, start_worker
from benchmarks.peers.worker import Task

WORKERS: Mapping[str, str] = MappingProxyType(
    {
        "PyTorch": "pytorch",
        "sentence-transformers": "sentence_transformers",
    }
)


def worker_ways(name: str, task: Task, engine: Engine, stack: ExitStack) -> dict[str, Way]:
    """An encoder in a process of its own, in this project's environment; none, with a word, if that fails."""
    try:
        worker = stack.enter_context(start_worker(Path(sys.executable), WORKERS[name], task))
    except PeerFailed as error:
        print(f"skipping {name}: {error}", flush=True)
        return {}
    check_vectors(worker.vectors(), engine.pooled(task.rows[:4]))
    return worker.ways(name)


def stage_ways(
    engine: Engine, server: Server, texts: list[str], arguments: argparse.Namespace, stack: ExitStack
) -> dict[str, Way]:
    """Every stage on the same texts, once its vectors are right."""
    rows = tokenize(engine.artifact, texts)
    plans, make = standard_plans(rows), partial(encode_requests, texts, rows)
    check_vectors(fetch(server, make(4)[0])["embeddings"], engine.pooled(rows[:4]))
    weights = checkpoint_folder(arguments.weights, engine.artifact).path
    task = Task(str(weights), len(os.sched_getaffinity(0)), texts, rows, plans)
    ways: dict[str, Way] = {}
    for name in WORKERS:
        ways |= worker_ways(name, task, engine, stack)
    return ways | engine_ways(engine, rows, plans) | http_ways(server, make, arguments)


def stage_pairs(engine: Engine, arguments: argparse.Namespace) -> list[tuple[Words, Words]]:
    """Which stage is held against which."""
    graph = (engine.name,)
    over_http_pairs: list[tuple[Words, Words]] = [((http_name(count),), graph) for count in arguments.texts_per_request]
    others: tuple[Words, ...] = (("PyTorch",), ("sentence-transformers forward",), ("sentence-transformers encode",))
    return [*over_http_pairs, *((graph, other) for other in others)]


@program
def main() -> None:
    """Prepares every stage, measures alternately, prints rates."""
    arguments = _parse()
    engine = Engine.open(arguments.model, all_layouts())
    texts = load_texts(arguments.corpus, arguments.texts, arguments.seed)
    with open_server(arguments) as server, ExitStack() as stack:
        ways = stage_ways(engine, server, texts, arguments, stack)
        title = f"{arguments.corpus} texts, {arguments.connections} connections"
        stages = compare(title, ways, arguments.rounds)
    shares = ratios("ratios", "best over best, tokens/s", stage_pairs(engine, arguments), stages)
    emit("engine stages", [stages, shares], texts=fingerprint(texts), precision=engine.artifact.manifest.precision)


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="about ten minutes on two cores with all-MiniLM-L6-v2 in fp32")
    add_server_arguments(parser)
    add_weights_argument(parser)
    add_http_arguments(parser)
    return parser.parse_args()
