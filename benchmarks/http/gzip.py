"""Does gzip pay? Bytes and processor time of real answers at each level, in one run.

An answer is sent as it is or compressed. Compressing pays on a link on which the bytes saved take longer than
compressing them does: the last column says up to which speed. Times are the thread's own processor time, best of the
rounds, so that others on the machine matter little.
"""

import argparse
import time
import zlib
from collections.abc import Mapping
from typing import Any

from benchmarks.lib.command import parser_of, program, whole
from benchmarks.lib.comparison import ENCODE, fetch_body
from benchmarks.lib.load import Request, post
from benchmarks.lib.report import Table, emit
from benchmarks.lib.server import add_server_arguments, open_server
from benchmarks.lib.texts import fingerprint, load_texts
from model.artifact import Artifact

LEVELS = (1, 4, 6)
GZIP = 16 + zlib.MAX_WBITS  # zlib's way to ask for a gzip header
COLUMNS = ("answer", "level", "bytes", "compressed", "ratio", "ms", "pays_below_mbit_s")


@program
def main() -> None:
    """Asks a server for each kind of answer, compresses them, prints."""
    arguments = _parse()
    Artifact.open(arguments.model)  # said before a server is started
    texts = load_texts("short", 32)
    long_text = " ".join(load_texts("mixed", 16))  # as long as the model takes
    table = Table("compression", "gzip of answers to POST /encode", COLUMNS)
    with open_server(arguments) as server:
        bodies = {name: fetch_body(server, request) for name, request in _requests(texts, long_text).items()}
    for name, body in bodies.items():
        for level in LEVELS:
            table.add(answer=name, **measure(body, level, arguments.rounds))
    emit("http gzip", [table], texts=fingerprint([*texts, long_text]))


def measure(body: bytes, level: int, rounds: int) -> Mapping[str, Any]:
    """Size and seconds of one body at one level."""
    seconds, size = float("inf"), 0
    for _ in range(rounds):
        started = time.thread_time()
        size = len(zlib.compress(body, level, GZIP))
        seconds = min(seconds, time.thread_time() - started)
    saved = (len(body) - size) * 8e-6
    return {
        "level": level,
        "bytes": len(body),
        "compressed": size,
        "ratio": len(body) / size,
        "ms": 1000 * seconds,
        "pays_below_mbit_s": saved / seconds,
    }


def _requests(texts: list[str], long_text: str) -> dict[str, Request]:
    bodies: dict[str, dict[str, Any]] = {
        "1 text, floats": {"inputs": texts[0]},
        "32 texts, floats": {"inputs": texts},
        "32 texts, base64": {"inputs": texts, "encoding_format": "base64"},
    }
    for layers in ("last", "all"):
        for encoding_format in ("float", "base64"):
            body = {"inputs": long_text, "encoding_format": encoding_format, "attention": {"layers": layers}}
            bodies[f"attention, {layers}, {encoding_format}"] = body
    return {name: post(ENCODE, body) for name, body in bodies.items()}


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="seconds")
    add_server_arguments(parser)
    parser.add_argument("--rounds", type=whole, default=5, help="the best of N counts")
    return parser.parse_args()
