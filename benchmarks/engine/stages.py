"""What does each stage give, from the network in PyTorch to the service over HTTP, and what does attention cost?

One run, the same texts: the encoder in PyTorch, the graph in ONNX Runtime, the service with one and with several texts
a request, and sentence-transformers for comparison. Then the latency of one text of 128 tokens without attention, with
one layer's and with all layers' weights, in the engine and over HTTP.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.lib.client import post
from benchmarks.lib.command import parser_of, program
from benchmarks.lib.comparison import (
    Way,
    Words,
    add_http_arguments,
    compare,
    engine_ways,
    http_name,
    http_ways,
    over_http,
    over_passes,
    ratios,
)
from benchmarks.lib.engines import Engine, all_layouts
from benchmarks.lib.passes import run_pass
from benchmarks.lib.payloads import ENCODE, check_vectors, encode_requests, fetch
from benchmarks.lib.report import Table, emit
from benchmarks.lib.server import Server, add_server_arguments, open_server
from benchmarks.lib.texts import fingerprint, load_texts
from benchmarks.lib.tokens import TokenIds, make_batch, standard_plans, tokenize
from benchmarks.lib.weights import add_weights_argument, checkpoint_folder
from benchmarks.peers.process import PeerFailed, start_worker
from benchmarks.peers.worker import Task

ATTENTION_TOKENS = 128
ATTENTION_RUNS = 100  # of the engine, in one measurement
ATTENTION_BODIES: Mapping[str, Any] = MappingProxyType(
    {
        "none": None,
        "last layer, first token's row": {"layers": "last", "queries": "cls"},
        "last layer": {"layers": "last"},
        "all layers": {"layers": "all"},
    }
)
WORKERS: Mapping[str, str] = MappingProxyType(
    {
        "PyTorch": "benchmarks.peers.pytorch_worker",
        "sentence-transformers": "benchmarks.peers.sentence_transformers_worker",
    }
)


def worker_ways(name: str, task: Task, engine: Engine, stack: ExitStack) -> dict[str, Way]:
    """An encoder in a process of its own, in this project's environment; none, with a word, where that fails."""
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


def attention_ways(engine: Engine, server: Server, text: TokenIds, seconds: float) -> dict[str, Way]:
    """One text at a time, in the engine on one thread and over one connection, with more and more attention."""
    layers = engine.artifact.manifest.config.num_layers
    backend = engine.backends[all_layouts()[0]]  # one thread a worker; one worker is used here
    choices = {"none": (), "last layer": (layers - 1,), "all layers": tuple(range(layers))}
    ways: dict[str, Way] = {}
    for choice, wanted in choices.items():
        ways[f"engine, {choice}"] = over_passes(
            partial(run_pass, backend, [make_batch([text], wanted)] * ATTENTION_RUNS, 1)
        )
    for choice, body in ATTENTION_BODIES.items():
        request = post(ENCODE, {"inputs": text, "attention": body}, texts=1, tokens=len(text))
        ways[f"HTTP, {choice}"] = over_http(server, [request], 1, seconds)
    return ways


def attention_costs(table: Table) -> Table:
    """Median latency of each way over that of the same path without attention."""
    found = Table("attention_cost", "median latency, and over that without attention", ("way", "p50_ms", "ratio"))
    plain = {row["way"]: row["p50_ms"] for row in table.rows}
    for row in table.rows:
        path = row["way"].partition(",")[0]
        found.add(way=row["way"], p50_ms=row["p50_ms"], ratio=row["p50_ms"] / plain[f"{path}, none"])
    return found


@program
def main() -> None:
    """Prepares every stage, measures in turns, prints rates and what attention costs."""
    arguments = _parse()
    engine = Engine.open(arguments.model, all_layouts())
    texts = load_texts(arguments.corpus, arguments.texts, arguments.seed)
    running = cycle(chain.from_iterable(tokenize(engine.artifact, texts)))
    text = list(islice(running, min(ATTENTION_TOKENS, engine.artifact.manifest.max_sequence_length)))
    with open_server(arguments) as server, ExitStack() as stack:
        ways = stage_ways(engine, server, texts, arguments, stack)
        print(f"{len(ways)} ways, {arguments.rounds} rounds and one of warm-up, then attention", flush=True)
        title = f"{arguments.corpus} texts, {arguments.connections} connections"
        stages = compare("stages", title, ways, arguments.rounds)
        costs = attention_ways(engine, server, text, arguments.seconds)
        attention = compare("attention", f"one text of {len(text)} tokens at a time", costs, arguments.rounds)
    shares = ratios("ratios", "best over best, tokens/s", stage_pairs(engine, arguments), stages)
    tables = [stages, shares, attention, attention_costs(attention)]
    emit("engine stages", tables, texts=fingerprint(texts), precision=engine.artifact.manifest.precision)


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="about twelve minutes on two cores with all-MiniLM-L6-v2 in fp32")
    add_server_arguments(parser)
    add_weights_argument(parser)
    add_http_arguments(parser)
    return parser.parse_args()
