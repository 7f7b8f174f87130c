"""How long from the start of the process until it is ready for traffic, and what does it hold in memory then?

Beside it, in turns, what no start can avoid: a bare interpreter, and one that only imports what the service imports.
The files are in the page cache after the first run, which is dropped. With `--requests N` each service then answers N
texts of many lengths, one a request, and its memory is read again: engines keep buffers and kernels by shape. PSS
counts a page that several processes hold once; files are what is mapped, libraries and weights.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.lib.command import CannotMeasure, parser_of, program, whole
from benchmarks.lib.comparison import encode_requests
from benchmarks.lib.load import Address, Connection, Request
from benchmarks.lib.report import Spread, Table, emit, in_turns, labels
from benchmarks.lib.server import polyhead
from benchmarks.lib.texts import load_texts, tokenize
from model.artifact import Artifact

IMPORTS = (
    "import fastapi, numpy, onnxruntime, orjson, prometheus_client, pydantic_settings, tokenizers, uvicorn, uvloop"
)
CONNECTIONS = 4  # requests under way: few enough that no long text has to be refused
MEMORY = ("resident_mb", "pss_mb", "pss_after_mb", "files_after_mb")


@dataclass(frozen=True, slots=True)
class Start:
    """One start.

    Attributes:
        seconds: from the start of the process until it was ready, or had ended.
        memory: megabytes, by the names of `MEMORY`, those that were read.
    """

    seconds: float
    memory: Mapping[str, float]


def start_service(artifact: Path, settings: Mapping[str, str], requests: Sequence[Request]) -> Start:
    """The service until `/readyz` answers 200, its memory then, and after these requests if there are any."""
    with polyhead(artifact, settings) as server:
        read = {"resident_mb": server.resident_bytes(), "pss_mb": server.pss_bytes()}
        if requests:
            asyncio.run(send_each(server.address, requests))
            read |= {"pss_after_mb": server.pss_bytes(), "files_after_mb": server.pss_bytes("Pss_File")}
        return Start(server.ready_after, {name: held / 1e6 for name, held in read.items()})


async def send_each(address: Address, requests: Iterable[Request]) -> None:
    """Sends every request once, on `CONNECTIONS` connections that take the next when they have an answer.

    Raises:
        CannotMeasure: an answer has another status than its request expects.
    """
    waiting = iter(requests)

    async def drive(connection: Connection) -> None:
        for request in waiting:
            response = await connection.send(request.data)
            if response.status != request.expects:
                raise CannotMeasure(f"a request was answered {response.status}, expected {request.expects}")
        connection.close()

    await asyncio.gather(*(drive(Connection(address)) for _ in range(CONNECTIONS)))


def start_python(code: str) -> Start:
    """An interpreter that runs something and ends."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own interpreter and code
    return Start(time.perf_counter() - began, {})


def requests_for(directory: Path, count: int | None) -> list[Request]:
    """As many requests of one text each, for an artifact."""
    artifact = Artifact.open(directory)
    texts = load_texts("mixed", count) if count else []
    return encode_requests(texts, tokenize(artifact, texts), 1) if texts else []


@program
def main() -> None:
    """Starts everything several times and prints the medians."""
    takes = "about a quarter of a minute an artifact, and with --requests as long as they do"
    parser = parser_of(__doc__, "set", takes=takes, rounds=7)
    parser.add_argument("model", type=Path, nargs="+", metavar="DIR", help="artifacts to start the service with")
    parser.add_argument("--requests", type=whole, metavar="N", help="texts that each service answers once it is ready")
    arguments = parser.parse_args()
    settings = dict(arguments.set)
    starts: dict[str, Callable[[], Start]] = {
        "interpreter alone": partial(start_python, "pass"),
        "interpreter and imports": partial(start_python, IMPORTS),
    }
    names = labels(arguments.model)
    for directory in arguments.model:
        requests = requests_for(directory, arguments.requests)  # a folder that is no artifact fails before any start
        starts[f"ready, {names[directory]}"] = partial(start_service, directory, settings, requests)
    table = Table("startup", "seconds from the process' start", ("start", "seconds", "lowest", "highest", *MEMORY))
    for name, runs in in_turns(starts, arguments.rounds).items():
        spread = Spread.of([run.seconds for run in runs])
        held = {kind: Spread.of([run.memory[kind] for run in runs]).median for kind in MEMORY if kind in runs[0].memory}
        table.add(start=name, seconds=spread.median, lowest=spread.lowest, highest=spread.highest, **held)
    emit("service startup", [table], server_settings=settings, requests=arguments.requests)
