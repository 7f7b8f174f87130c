"""`python -m service --model DIR`: reads the settings, serves until told to end. `python -m service tune` measures.

The one place, with the settings, that looks at the environment.
"""

import os

# Read when NumPy is imported. Its products, of rollouts and /explain, would take a thread a core, which turn in circles
# until all are there: while the model has the cores, 1.5 milliseconds of work take a hundred.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import importlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from service.machine.heap import bound_heap
from service.machine.listener import FAILED, StartFailure
from service.observability import logs
from service.processes.shares import processes_of
from service.settings import PROGRAM, Settings, SettingsError, misspelt_variables, read_settings

if TYPE_CHECKING:  # a parent of several processes needs neither it nor what it imports
    from service.lifecycle import Load

WRONG_SETTINGS = 2

logger = logging.getLogger("service")


def main(
    arguments: Sequence[str] | None = None,
    load: "Load | None" = None,
    program: str = PROGRAM,
    model: Path | None = None,
) -> int:
    """Runs the service, or `tune`; returns the exit code.

    A test may load another engine. Several processes find the function by its name, so it is at the top of a module.
    """
    if sys.stderr is None:  # closed before we came: nobody reads the log
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["tune"]:
        return _tune(given[1:])
    try:
        settings = read_settings(given, program, model)
    except SettingsError as error:
        return _complain(program, "; ".join([str(error), *_misspelt()]), WRONG_SETTINGS)
    # Tokenising has threads of its own; the library's would compete with the model's for the same cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    bound_heap(os.environ)
    log = logs.configure(settings.log_level)
    _report(settings)
    try:
        with log.in_background():
            return _serve(settings, load, program)
    except StartFailure as error:
        return _complain(program, error, FAILED)


def _serve(settings: Settings, load: "Load | None", program: str) -> int:
    if (processes := processes_of(settings)) > 1:
        from service.processes.parent import supervise  # noqa: PLC0415 - what is not used is not loaded

        return supervise(settings, processes, load, program)
    from service.server import serve  # noqa: PLC0415 - likewise

    return serve(settings, load)


def _tune(arguments: list[str]) -> int:
    """The old name of `polyhead tune`: the command line stands above the service, which may not import it."""
    sys.stderr.write("python -m service tune is now polyhead tune\n")
    return int(importlib.import_module("polyhead.cli").main(["tune", *arguments]))


def _report(settings: Settings) -> None:
    for message in _misspelt():
        logger.warning(message)
    logger.info("starting", extra={"fields": {"settings": settings.model_dump(mode="json")}})


def _misspelt() -> list[str]:
    found = misspelt_variables(os.environ).items()
    return [
        f"no setting is called {name}" + (f"; did you mean {nearest}?" if nearest else "") for name, nearest in found
    ]


def _complain(program: str, error: Exception | str, code: int) -> int:
    sys.stderr.write(f"{program}: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
