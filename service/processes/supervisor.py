"""The parent of several processes: starts them, replaces those that die, hands connections on, ends with them.

It serves nothing itself. SIGTERM and SIGINT end all processes in order, a second one at once; SIGHUP replaces each by a
new one, which takes over its connections: code, model and keys are read anew, and no request is lost. A child that is
sent SIGTERM is replaced in the same way. Each process gets its share of the machine and of every limit.
"""

import asyncio
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from model.artifact import ArtifactError, read_manifest
from service.errors import one_line
from service.listeners import FAILED, StartFailure, address_of, listening
from service.machine import cgroup_quota, core_limit, usable_cores
from service.processes.channel import BEAT_INTERVAL, Assignment
from service.processes.children import ChildProcess, Children, Distributor, ParentMetrics
from service.settings import Settings

END_MARGIN_SECONDS = 10.0  # beyond the time that running requests get
MOST_DEATHS = 8  # in a row, of one place
STEADY_SECONDS = 60.0  # of being ready, after which a death is the first of a row again
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 10.0  # seconds; each delay is twice the one before

# One text a request costs an event loop 0.4 to 0.6 ms, and a core of the model 2 (int8) or 4 to 5 ms (fp32); see
# docs/performance.md. With more cores behind it a loop is what holds the others up.
INT8_CORES_PER_PROCESS, CORES_PER_PROCESS = 4, 10

_SHARED = ("max_connections", "max_queue_tokens", "max_held_body_bytes", "max_held_answer_bytes")
_AT_LEAST = {"max_queue_tokens": "max_request_tokens", "max_held_body_bytes": "max_body_bytes"}

logger = logging.getLogger(__name__)


def supervise(settings: Settings, processes: int, load: object, program: str) -> int:
    """Runs several processes until they are told to end; returns the exit code.

    `load` makes a runner and is at the top of its module; None for the service's own.

    Raises:
        StartFailure: a port is taken, or no process can be started.
    """
    place = None if load is None else _place_of(load)
    with listening(settings) as (resolved, listeners):
        return asyncio.run(Supervisor(resolved, processes, listeners, place, program).run())


def _place_of(function: object) -> str:
    """Where another process finds a function, also one of the module that was started as a program."""
    module = getattr(function, "__module__")  # noqa: B009 - of any callable
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if module == "__main__" and spec is not None:
        module = spec.name
    return f"{module}:{getattr(function, '__name__')}"  # noqa: B009 - of any callable


class Supervisor:
    """Keeps processes at work until it is told to end; arguments as of `supervise`, `load` as of `Assignment`."""

    def __init__(
        self, settings: Settings, processes: int, listeners: Sequence[socket.socket], load: str | None, program: str
    ) -> None:
        self._settings = settings
        self._processes = processes
        self._load = load
        self._program = program
        self._address = address_of(listeners[0])
        self._children = Children(processes)
        self._distributor = Distributor(listeners)
        self._metrics = ParentMetrics(processes, self._children.is_ready)
        self._deaths: dict[int, int] = {}
        self._starting = 0  # processes that the system was asked for and has not given yet
        self._turn = asyncio.Lock()  # of whoever starts processes
        self._background: set[asyncio.Task[None]] = set()
        self._has_been_ready = False
        self._code = os.EX_OK
        self._ended = asyncio.Event()

    async def run(self) -> int:
        """Runs until every process has ended; returns the exit code.

        Raises:
            StartFailure: no process can be started.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_end_signal)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._start(self._replace_all()))
        logger.info("loading %s; probes are answered on %s", self._settings.model, self._address)
        try:
            async with self._turn:
                for index in range(self._processes):
                    if not self._children.is_ending:
                        self._children.serving[index] = await self._start_child(index)
        except OSError as error:
            self._children.kill()
            raise StartFailure(f"cannot start a process: {one_line(error)}") from error
        self._start(self._look_after_children())
        await self._ended.wait()
        logger.info("ended")
        return self._code

    async def _start_child(self, index: int) -> ChildProcess:
        share, cores = share_of(self._settings, index, self._processes), cores_of(index, self._processes)
        settings = share.model_dump(mode="json", exclude={"api_keys"})
        if keys := share.api_keys.get_secret_value():  # none would be refused
            settings["api_keys"] = keys
        assignment = Assignment(index, settings, cores, self._load, self._program, self._address)
        self._starting += 1
        try:
            child = await ChildProcess.start(assignment)
            self._children.all.add(child)
        finally:
            self._starting -= 1
            self._note_end()
        logger.info("process %d started", index, extra={"fields": {"pid": child.pid, "cores": cores}})
        self._start(self._follow(child))
        if self._children.is_ending:  # it was not there yet when all others were told
            child.tell("end")
        return child

    def _note_end(self) -> None:
        """Notes that everything has ended, if so."""
        if self._children.is_ending and not self._children.all and not self._starting:
            self._ended.set()

    async def _follow(self, child: ChildProcess) -> None:
        """Deals with what a child says, and with its end."""
        async for message in child.messages():
            match message["kind"]:
                case "hello":
                    self._distributor.add(child)
                case "ready":
                    if not self._has_been_ready and self._children.is_ready():
                        self._has_been_ready = True
                        logger.info("listening on %s", self._address)
                case "scrape":
                    self._start(self._answer_scrape(child))
                case "leave" if child is self._children.serving.get(child.index):
                    self._start(self._replace(child.index))
            self._children.tell()
        self._distributor.remove(child)
        self._on_end(child, await child.ended())

    async def _answer_scrape(self, child: ChildProcess) -> None:
        child.tell("snapshot", metrics=await self._metrics.gather(self._children.all))

    def _on_end(self, child: ChildProcess, code: int) -> None:
        self._metrics.keep(child)
        was_serving = self._children.remove(child)
        if code or (was_serving and not self._children.is_ending):
            logger.error("process %d ended", child.index, extra={"fields": {"pid": child.pid, "code": code}})
        if self._children.is_ending:
            self._code = self._code or (FAILED if code else os.EX_OK)
            self._note_end()
        elif was_serving and not self._has_been_ready:
            self._give_up("a process ended before all were ready")
        elif was_serving:
            self._start(self._restart(child.index, child.was_ready))

    async def _restart(self, index: int, was_ready: float | None = None) -> None:
        """Starts a process after one died, the later the more of them died."""
        delay = delay_after_death(self._deaths, index, was_ready, asyncio.get_running_loop().time())
        if delay is None:
            self._give_up("processes keep dying")
            return
        await asyncio.sleep(delay)
        async with self._turn:
            if self._children.is_ending or index in self._children.serving:  # it was replaced meanwhile
                return
            self._metrics.restarts.inc()
            try:
                self._children.serving[index] = await self._start_child(index)
            except OSError:
                logger.exception("no process could be started")
                self._start(self._restart(index))

    async def _replace_all(self) -> None:
        logger.info("replacing every process, one after the other")
        for index in range(self._processes):
            await self._replace(index)

    async def _replace(self, index: int) -> None:
        """Starts a second process, and has the one that serves leave once the new one is ready."""
        async with self._turn:
            if self._children.is_ending:
                return
            try:
                new = await self._start_child(index)
            except OSError:
                logger.exception("no process could be started")
                return
            if await new.becomes_ready():
                old = self._children.serving.get(index)
                self._children.serving[index] = new
                self._children.tell()
                if old is not None:
                    old.tell("leave")
            elif not self._children.is_ending:
                logger.error("the new process %d did not become ready: the one before it serves on", index)

    def _on_end_signal(self) -> None:
        if self._children.is_ending:
            logger.warning("second signal: ending at once")
            self._code = FAILED
            self._children.kill()
            return
        self._begin_end(self._settings.drain_delay)

    def _give_up(self, why: str) -> None:
        if not self._children.is_ending:
            logger.critical("%s: the service ends", why)
            self._code = FAILED
            self._begin_end(0.0)

    def _begin_end(self, delay: float) -> None:
        """Ends every process in order: not ready, serving on for the delay, then no more connections."""
        self._children.is_ending = True  # from here on no process is started
        self._start(self._end(delay))

    async def _end(self, delay: float) -> None:
        logger.info("draining: not ready, serving for %s s more", delay)
        for child in self._children.all:
            child.tell("drain")
        await asyncio.sleep(delay)
        self._distributor.close()
        for child in self._children.all:
            child.tell("end")
        self._note_end()
        await asyncio.sleep(2 * self._settings.shutdown_timeout + END_MARGIN_SECONDS)
        self._code = FAILED
        self._children.kill()

    async def _look_after_children(self) -> None:
        while True:
            await asyncio.sleep(BEAT_INTERVAL)
            self._children.look()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a task that no other awaits; if it fails, everything ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_background_end)

    def _on_background_end(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a background task failed", exc_info=error)
            self._give_up("the parent process failed")


def delay_after_death(deaths: dict[int, int], index: int, was_ready: float | None, now: float) -> float | None:
    """Counts one more death at a place; returns the seconds to wait before the next start, None to give up.

    `was_ready` says when the process had become ready, None if it had not.
    """
    is_steady = was_ready is not None and now - was_ready >= STEADY_SECONDS
    row = deaths[index] = 1 if is_steady else deaths.get(index, 0) + 1
    return None if row > MOST_DEATHS else min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (row - 1))


def processes_of(settings: Settings) -> int:
    """Processes that serve; chosen by cores and precision if the settings leave it open, one for a GPU."""
    if settings.processes:
        return settings.processes
    if settings.provider != "cpu":
        return 1
    try:
        precision = read_manifest(settings.named_models[0][1]).precision
    except (ArtifactError, OSError):
        return 1  # which says what is wrong with the artifact
    return math.ceil(usable_cores() / (INT8_CORES_PER_PROCESS if precision == "int8" else CORES_PER_PROCESS))


def share_of(settings: Settings, index: int, processes: int) -> Settings:
    """What one of several processes is told: its part of every limit on all requests, and its workers."""
    shares = {name: -(-getattr(settings, name) // processes) for name in _SHARED}
    for name, least in _AT_LEAST.items():
        shares[name] = max(shares[name], getattr(settings, least))  # or the largest request could never be served
    if not settings.workers and settings.provider == "cpu":
        cores = math.floor(core_limit())  # all of them are shared out, whether a process is tied to its own or not
        own = _first(index + 1, cores, processes) - _first(index, cores, processes)
        shares["workers"] = max(1, own // settings.intra_op_threads)
    return settings.model_copy(update=shares)


def cores_of(index: int, processes: int) -> list[int] | None:
    """The cores that a process is tied to; None if it runs on all of them.

    That is so if there are fewer cores than processes, under a quota, and on systems that tie no process to cores.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < processes or (cgroup_quota() or math.inf) < len(cores):
        return None
    return cores[_first(index, len(cores), processes) : _first(index + 1, len(cores), processes)]


def _first(index: int, cores: int, processes: int) -> int:
    return index * cores // processes
