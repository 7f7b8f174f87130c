"""How long from the start of the process until it is ready for traffic, and what does it hold in memory then?

Beside it, in turns, what no start can avoid: a bare interpreter, and one that only imports what the service imports.
The files are in the page cache after the first run, which is dropped. With `--requests N` each service then answers N
texts of many lengths, one a request, and its memory is read again: engines keep buffers and kernels by shape. PSS
counts a page that several processes hold once; files are what is mapped, libraries and weights.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.lib.command import parser_of, program, whole
from benchmarks.lib.comparison import encode_requests, fetch_body
from benchmarks.lib.load import Request
from benchmarks.lib.report import Spread, Table, emit, in_turns, median
from benchmarks.lib.server import polyhead
from benchmarks.lib.texts import load_texts, tokenize
from model.artifact import Artifact

IMPORTS = (
    "import fastapi, numpy, onnxruntime, orjson, prometheus_client, pydantic_settings, tokenizers, uvicorn, uvloop"
)
CONNECTIONS = 4  # requests under way: few enough that no long text has to be refused
Start = tuple[float, dict[str, float]]  # seconds until it was ready, or had ended; megabytes by kind


def start_service(artifact: Path, requests: Sequence[Request]) -> Start:
    """The service until `/readyz` answers 200, its memory then, and after these requests if there are any.

    Raises:
        CannotMeasure: an answer is none, or has another status than 200.
    """
    with polyhead(artifact, {}) as server:
        held = {"resident_mb": server.resident_bytes(), "pss_mb": server.pss_bytes()}
        if requests:
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                list(pool.map(partial(fetch_body, server.address), requests))
            held |= {"pss_after_mb": server.pss_bytes(), "files_after_mb": server.pss_bytes("Pss_File")}
        return server.ready_after, {name: size / 1e6 for name, size in held.items()}


def start_python(code: str) -> Start:
    """An interpreter that runs something and ends."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own interpreter and code
    return time.perf_counter() - began, {}


@program
def main() -> None:
    """Starts everything several times and prints the medians."""
    takes = "about a quarter of a minute an artifact, and with --requests as long as they do"
    parser = parser_of(__doc__, takes=takes, rounds=7)
    parser.add_argument("model", type=Path, nargs="+", metavar="DIR", help="artifacts to start the service with")
    parser.add_argument("--requests", type=whole, metavar="N", help="texts that each service answers once it is ready")
    arguments = parser.parse_args()
    starts: dict[str, Callable[[], Start]] = {
        "interpreter alone": partial(start_python, "pass"),
        "interpreter and imports": partial(start_python, IMPORTS),
    }
    texts = load_texts("mixed", arguments.requests) if arguments.requests else []
    for directory in arguments.model:
        rows = tokenize(Artifact.open(directory), texts)  # a folder that is no artifact fails before any start
        requests = encode_requests(texts, rows, 1) if texts else []
        starts[f"ready, {directory}"] = partial(start_service, directory, requests)
    table = Table("startup", "seconds from the process' start")
    for name, runs in in_turns(starts, arguments.rounds).items():
        spread = Spread.of([seconds for seconds, _ in runs])
        held = {kind: median([memory[kind] for _, memory in runs]) for kind in runs[0][1]}
        table.add(start=name, seconds=spread.median, lowest=spread.lowest, highest=spread.highest, **held)
    emit("service startup", [table], requests=arguments.requests)
