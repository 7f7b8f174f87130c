"""`python -m service --model DIR`: reads the settings, serves until told to end.

The one place, with the settings, that looks at the environment.
"""

import os

# Read when NumPy is imported. Its products, of rollouts and /explain, would take a thread a core, which turn in circles
# until all are there: while the model has the cores, 1.5 milliseconds of work take a hundred.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import signal

if __name__ == "__main__":  # the imports take a second, in which the first process of a container would ignore it
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from service.listeners import FAILED, StartFailure
from service.machine import bound_heap
from service.observability import logs
from service.processes.supervisor import processes_of, supervise
from service.settings import PROGRAM, Settings, SettingsError, misspelt_variables, read_settings

if TYPE_CHECKING:  # a parent of several processes needs neither it nor what it imports
    from service.server import Load

WRONG_SETTINGS = 2

logger = logging.getLogger("service")


def main(arguments: Sequence[str] | None = None, load: "Load | None" = None) -> int:
    """Runs the service; returns the exit code.

    A test may load another engine. Several processes find the function by its name, so it is at the top of a module.
    """
    try:
        settings = read_settings(arguments)
    except SettingsError as error:
        sys.stderr.write(f"{PROGRAM}: {'; '.join([str(error), *misspelt_variables(os.environ)])}\n")
        return WRONG_SETTINGS
    return run(settings, load)


def run(settings: Settings, load: "Load | None" = None, program: str = PROGRAM) -> int:
    """Serves with these settings until told to end; returns the exit code."""
    # Tokenising has threads of its own; the library's would compete with the model's for the same cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    bound_heap(os.environ)
    log = logs.configure(settings.log_level)
    for problem in misspelt_variables(os.environ):
        logger.warning(problem)
    logger.info("starting", extra={"fields": {"settings": settings.model_dump(mode="json")}})
    try:
        with log.in_background():
            if (processes := processes_of(settings)) > 1:
                return supervise(settings, processes, load, program)
            from service.server import serve  # noqa: PLC0415 - what a parent of several does not use it does not load

            return serve(settings, load)
    except StartFailure as error:
        sys.stderr.write(f"{program}: {error}\n")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
