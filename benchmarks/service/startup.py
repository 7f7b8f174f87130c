"""How long from the start of the process until it is ready for traffic, and what does it hold in memory then?

Beside it, in turns, what no start can avoid: a bare interpreter, and one that only imports what the service imports.
The files are in the page cache after the first run, which is dropped.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.lib.command import parser_of, program, whole
from benchmarks.lib.report import Spread, Table, emit, in_turns, labels
from benchmarks.lib.server import add_setting_argument, polyhead, settings_of
from model.artifact import Artifact

IMPORTS = (
    "import fastapi, numpy, onnxruntime, orjson, prometheus_client, pydantic_settings, tokenizers, uvicorn, uvloop"
)
Start = tuple[float, float | None]  # seconds, resident bytes


def start_service(artifact: Path, settings: Mapping[str, str]) -> Start:
    """Seconds from the start of the process to `/readyz` 200, and resident bytes at that moment."""
    with polyhead(artifact, settings) as server:
        resident = server.resident_bytes()
        assert server.ready_after is not None and resident is not None  # noqa: S101, PT018 - it was started here
        return server.ready_after, float(resident)


def start_python(code: str) -> Start:
    """Seconds that an interpreter takes to run something and end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own interpreter and code
    return time.perf_counter() - began, None


@program
def main() -> None:
    """Starts everything several times and prints the medians."""
    arguments = _parse()
    settings = settings_of(arguments)
    starts: dict[str, Callable[[], Start]] = {
        "interpreter alone": partial(start_python, "pass"),
        "interpreter and imports": partial(start_python, IMPORTS),
    }
    names = labels(arguments.model)
    for directory in arguments.model:
        Artifact.open(directory)  # said before anything is started
        starts[f"ready, {names[directory]}"] = partial(start_service, directory, settings)
    table = Table(
        "startup", "seconds from the process' start", ("start", "seconds", "lowest", "highest", "resident_mb")
    )
    for name, runs in in_turns(starts, arguments.rounds).items():
        spread = Spread.of([seconds for seconds, _ in runs])
        resident = [held / 1e6 for _, held in runs if held is not None]
        table.add(
            start=name,
            seconds=spread.median,
            lowest=spread.lowest,
            highest=spread.highest,
            resident_mb=Spread.of(resident).median if resident else None,
        )
    emit("service startup", [table], server_settings=arguments.set)


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__, takes="about a quarter of a minute an artifact")
    parser.add_argument("model", type=Path, nargs="+", metavar="DIR", help="artifacts to start the service with")
    parser.add_argument("--rounds", type=whole, default=7, help="measured rounds; one more warms up")
    add_setting_argument(parser)
    return parser.parse_args()
