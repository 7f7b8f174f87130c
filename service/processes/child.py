"""A child: `python -m service.processes.child CONNECTIONS CONTROL`, the descriptors of its two lines to the parent.

Only the parent starts it. What it is comes as the first message over the second line.
"""

import importlib
import os
import socket
import sys
from typing import cast

import uvicorn

from service.http.connection_limit import ConnectionSlots
from service.lifecycle import Load
from service.machine.heap import bound_heap
from service.machine.listener import FAILED, StartFailure
from service.observability import logs
from service.processes.child_server import ChildServer
from service.processes.membership import Membership
from service.processes.messages import Assignment
from service.readiness import Readiness
from service.server import load_runner, run_server
from service.services import Services
from service.settings import Settings


def main(connections: socket.socket, control: socket.socket) -> int:
    """Serves until the parent says otherwise; returns the exit code."""
    try:
        assignment = Assignment.read(control)
    except EOFError:
        return FAILED
    if assignment.cores:
        os.sched_setaffinity(0, assignment.cores)
    settings = Settings(**assignment.settings)
    bound_heap(os.environ)
    log = logs.configure(settings.log_level, fields={"process": assignment.index})
    try:
        with log.in_background():
            return _serve(assignment, settings, connections, control)
    except StartFailure as error:
        sys.stderr.write(f"{assignment.program}: {error}\n")
        return FAILED


def _serve(assignment: Assignment, settings: Settings, connections: socket.socket, control: socket.socket) -> int:
    membership, load = Membership(control), _load_of(assignment)

    def make(config: uvicorn.Config, services: Services, slots: ConnectionSlots, interval: float) -> ChildServer:
        return ChildServer(
            config,
            services,
            load,
            assignment.address,
            interval,
            slots=slots,
            connections=connections,
            membership=membership,
        )

    return run_server(settings, Readiness(membership), make, [])


def _load_of(assignment: Assignment) -> Load:
    if assignment.load is None:
        return load_runner
    module, _, name = assignment.load.partition(":")
    return cast(Load, getattr(importlib.import_module(module), name))


if __name__ == "__main__":
    sys.exit(main(*(socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:])))
