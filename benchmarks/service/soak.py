"""Does memory stay flat under long mixed load, and is every request still answered?

All kinds of requests in turn, as fast as they are answered: single texts, lists, long texts, token vectors, attention
of one layer and of all, and bodies that must be refused. The server's resident memory is read every few seconds; its
slope is fitted to the second half, when caches and arenas have seen every shape.
"""

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks.lib.command import parser_of, positive, program
from benchmarks.lib.comparison import ENCODE, encode_requests
from benchmarks.lib.load import Request, post, run_closed_loop
from benchmarks.lib.report import Table, emit, slope
from benchmarks.lib.server import Server, polyhead
from benchmarks.lib.texts import load_texts, tokenize
from model.artifact import Artifact

REPORT_EVERY = 60.0  # seconds between two lines on the terminal


def mixed_requests(artifact: Artifact, seed: int) -> list[Request]:
    """Requests of every kind, shuffled; short texts are the most frequent, as they are in life."""
    short, mixed = load_texts("short", 640, seed), load_texts("mixed", 640, seed)
    make = partial(_requests, artifact)
    requests = [
        *make(short, 1),
        *make(short[:320], 32),
        *make(mixed[:200], 1),
        *make(mixed[200:328], 16),
        *make(mixed[328:368], 1, output="tokens"),
        *make(short[:80], 1, attention={"layers": "last"}),
        *make(short[80:112], 4, attention={"layers": "all"}),
        *make(mixed[368:384], 1, attention={"layers": "all", "queries": "cls"}),
        *refused_requests(artifact),
    ]
    random.Random(seed).shuffle(requests)  # noqa: S311 - an order, no secret
    return requests


def refused_requests(artifact: Artifact) -> list[Request]:
    """Bodies that the service must refuse with 422 and survive."""
    layers = artifact.manifest.config.num_layers
    bodies: list[dict[str, Any]] = [
        {},
        {"inputs": []},
        {"inputs": "text", "surprise": 1},
        {"inputs": [[artifact.manifest.config.vocab_size]]},
        {"inputs": "text", "attention": {"layers": [layers]}},
    ]
    return [post(ENCODE, body, expects=422) for body in bodies]


def _requests(artifact: Artifact, texts: Sequence[str], per_request: int, **options: Any) -> list[Request]:
    return encode_requests(texts, tokenize(artifact, texts), per_request, options)


def watch(server: Server, interval: float, stop: threading.Event, samples: dict[float, float]) -> None:
    """Reads megabytes by seconds, at once and every `interval` until told to stop; prints one now and then."""
    began, said = time.monotonic(), 0.0
    while True:
        passed, held = time.monotonic() - began, server.resident_bytes() / 1e6
        samples[passed] = held
        if passed - said >= REPORT_EVERY:
            said = passed
            print(f"{passed / 60:5.1f} min  {held:7.1f} MB", flush=True)
        if stop.wait(interval):
            break


@program
def main() -> None:
    """Starts the service, loads it for a while, prints memory and answers."""
    parser = parser_of(__doc__, "model", takes="an hour", connections=8)
    parser.add_argument("--minutes", type=positive, default=60.0, help="length of the load")
    parser.add_argument("--interval", type=positive, default=5.0, help="seconds between two looks at the memory")
    arguments = parser.parse_args()
    requests = mixed_requests(Artifact.open(arguments.model), seed=0)
    samples, stop, seconds = dict[float, float](), threading.Event(), 60 * arguments.minutes
    with polyhead(arguments.model, {}) as server, ThreadPoolExecutor(1) as pool:
        ready = server.resident_bytes() / 1e6
        pool.submit(watch, server, arguments.interval, stop, samples)
        try:
            tally = run_closed_loop(
                server.address, requests, connections=arguments.connections, seconds=seconds, warmup=0.0
            )
        finally:
            stop.set()
    times, held, half = [*samples], [*samples.values()], len(samples) // 2
    table = Table("memory", "resident memory of the server, MB")
    rise = 3600 * slope(times[half:], held[half:])
    table.add(**{"at ready": ready, "first": held[0], "peak": max(held), "last": held[-1], "mb_per_hour": rise})
    answers = Table("answers", f"{len(requests)} different requests in turn")
    for status, count in sorted(tally.statuses.items()):
        answers.add(status=str(status), answers=count)
    emit(
        "service soak",
        [table, answers],
        failed=tally.failed,
        **tally.rates(),
        samples={"seconds": times, "megabytes": held},
    )
