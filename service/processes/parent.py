"""Runs the parent: listens, then supervises until everything has ended."""

import asyncio
import sys

from service.listeners import open_listeners, remove_socket, with_admin_port
from service.processes.supervisor import Supervisor
from service.settings import Settings


def supervise(settings: Settings, processes: int, load: object, program: str) -> int:
    """Runs several processes until they are told to end; returns the exit code.

    Args:
        settings: of all together.
        processes: how many.
        load: the function that makes a runner, at the top of its module; None for the service's own.
        program: what the service was started as, for messages.

    Raises:
        StartFailure: a port is taken, or the system gives no process.
    """
    listeners = open_listeners(settings)
    place = None if load is None else _place_of(load)

    async def run() -> int:
        settings_now = with_admin_port(settings, listeners)
        return await Supervisor(settings_now, processes, listeners, place, program).run()

    try:
        return asyncio.run(run())
    finally:
        for listener in listeners:
            listener.close()
        remove_socket(settings)


def _place_of(function: object) -> str:
    """Where another process finds a function, also one of the module that was started as a program."""
    module = getattr(function, "__module__")  # noqa: B009 - of any callable
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if module == "__main__" and spec is not None:
        module = spec.name
    return f"{module}:{getattr(function, '__name__')}"  # noqa: B009 - of any callable
