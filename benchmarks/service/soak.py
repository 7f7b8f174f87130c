"""Does memory stay flat under long mixed load, and is every request still answered?

All kinds of requests in turn, as fast as they are answered: single texts, lists, long texts, token vectors, attention
of one layer and of all, and bodies that must be refused. The server's resident memory is read every few seconds; its
slope is fitted to the second half, when caches and arenas have seen every shape.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.lib.command import parser_of, positive, program
from benchmarks.lib.comparison import ENCODE, encode_requests
from benchmarks.lib.load import Request, Tally, post, run_closed_loop
from benchmarks.lib.report import Table, emit, slope
from benchmarks.lib.server import Server, polyhead
from benchmarks.lib.texts import load_texts, tokenize
from model.artifact import Artifact

MEGABYTE = 1e6
REPORT_EVERY = 60.0  # seconds between two lines on the terminal


@dataclass
class Memory:
    """Resident memory and threads of a server over time.

    Attributes:
        times: seconds since the load began.
        megabytes: resident memory at these times.
        threads: threads at these times.
    """

    times: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def watch(self, server: Server, interval: float, stop: threading.Event) -> None:
        """Takes a sample every `interval` seconds until told to stop, and prints one now and then."""
        began, said = time.monotonic(), 0.0
        while not stop.wait(interval):
            self.times.append(time.monotonic() - began)
            self.megabytes.append(server.resident_bytes() / MEGABYTE)
            self.threads.append(server.threads())
            if self.times[-1] - said >= REPORT_EVERY:
                said = self.times[-1]
                print(f"{said / 60:5.1f} min  {self.megabytes[-1]:7.1f} MB  {self.threads[-1]} threads", flush=True)

    def slope_per_hour(self) -> float:
        """Megabytes an hour, fitted to the second half."""
        half = len(self.times) // 2
        return 3600 * slope(self.times[half:], self.megabytes[half:])


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


def soak(server: Server, load: Callable[[], Tally], interval: float) -> tuple[Tally, Memory]:
    """Runs the load and watches the server's memory meanwhile."""
    memory, stop = Memory(), threading.Event()
    watcher = threading.Thread(target=memory.watch, args=(server, interval, stop))
    watcher.start()
    try:
        return load(), memory
    finally:
        stop.set()
        watcher.join()


@program
def main() -> None:
    """Starts the service, loads it for a while, prints memory and answers."""
    parser = parser_of(__doc__, "model", "set", takes="an hour", connections=8)
    parser.add_argument("--minutes", type=positive, default=60.0, help="length of the load")
    parser.add_argument("--interval", type=positive, default=5.0, help="seconds between two looks at the memory")
    arguments = parser.parse_args()
    if 60 * arguments.minutes <= arguments.interval:
        parser.error(f"--minutes {arguments.minutes:g}: the memory is looked at every {arguments.interval:g} seconds")
    requests, settings = mixed_requests(Artifact.open(arguments.model), seed=0), dict(arguments.set)
    with polyhead(arguments.model, settings) as server:
        ready = server.resident_bytes() / MEGABYTE
        load = partial(
            run_closed_loop,
            server.address,
            requests,
            connections=arguments.connections,
            seconds=60 * arguments.minutes,
            warmup=0.0,
        )
        tally, memory = soak(server, load, arguments.interval)
    table = Table("memory", "resident memory of the server, MB")
    figures = {"at ready": ready, "first": memory.megabytes[0], "peak": max(memory.megabytes)}
    table.add(**figures, last=memory.megabytes[-1], mb_per_hour=memory.slope_per_hour())
    answers = Table("answers", f"{len(requests)} different requests in turn")
    for status, count in sorted(tally.statuses.items()):
        answers.add(status=str(status), answers=count)
    samples = {"seconds": memory.times, "megabytes": memory.megabytes, "threads": memory.threads}
    figures = {"failed": tally.failed, **tally.rates()}
    emit("service soak", [table, answers], **figures, samples=samples, server_settings=settings)
