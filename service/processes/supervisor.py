"""The parent of several processes: starts them, replaces those that die, hands connections on, ends with them.

It serves nothing itself. SIGTERM and SIGINT end all processes in order, a second one at once; SIGHUP replaces each by a
new one, which takes over its connections: code, model and keys are read anew, and no request is lost. A child that is
sent SIGTERM is replaced in the same way.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

from service.errors import one_line
from service.machine.listener import FAILED, StartFailure, address_of
from service.processes.child_process import ChildProcess
from service.processes.children import Children
from service.processes.distributor import Distributor
from service.processes.messages import Assignment
from service.processes.parent_metrics import ParentMetrics
from service.processes.restarts import Restarts
from service.processes.shares import cores_of, share_of
from service.settings import Settings

LOOK_INTERVAL = 1.0  # seconds between two looks at the children
END_MARGIN_SECONDS = 10.0  # beyond the time that running requests get

logger = logging.getLogger(__name__)


class Supervisor:
    """Keeps processes at work until it is told to end.

    Args:
        settings: of all together.
        processes: how many.
        listeners: where clients come.
        load: where the function is that makes a runner, as `module:name`; None for the service's own.
        program: what the service was started as, for messages.
    """

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
        self._restarts = Restarts()
        self._replacing: set[int] = set()
        self._turn = asyncio.Lock()  # of replacements
        self._background: set[asyncio.Task[None]] = set()
        self._has_been_ready = False
        self._code = os.EX_OK
        self._ended = asyncio.Event()

    async def run(self) -> int:
        """Runs until every process has ended; returns the exit code.

        Raises:
            StartFailure: the system gives no process.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_end_signal)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._start(self._replace_all()))
        logger.info("loading %s; probes are answered on %s", self._settings.model, self._address)
        try:
            for index in range(self._processes):
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
        settings = {**share.model_dump(mode="json"), "api_keys": share.api_keys.get_secret_value()}
        child = await ChildProcess.start(Assignment(index, settings, cores, self._load, self._program, self._address))
        logger.info("process %d started", index, extra={"fields": {"pid": child.pid, "cores": cores}})
        self._children.all.add(child)
        self._start(self._follow(child))
        return child

    async def _follow(self, child: ChildProcess) -> None:
        """Deals with what a child says, and with its end."""
        async for message in child.messages():
            match message["kind"]:
                case "hello":
                    self._distributor.add(child)
                case "ready":
                    self._note_ready()
                case "scrape":
                    self._start(self._answer_scrape(child, message["id"]))
                case "leave" if child is self._children.serving.get(child.index):
                    self._start(self._replace(child.index))
            self._children.tell()
        self._distributor.remove(child)
        self._on_end(child, await child.ended())

    def _note_ready(self) -> None:
        if not self._has_been_ready and self._children.is_ready():
            self._has_been_ready = True
            logger.info("listening on %s", self._address)

    async def _answer_scrape(self, child: ChildProcess, number: int) -> None:
        child.answer_scrape(number, await self._metrics.gather(self._children.all))

    def _on_end(self, child: ChildProcess, code: int) -> None:
        self._metrics.keep(child)
        was_serving = self._children.remove(child)
        if self._children.is_ending:
            self._code = self._code or (FAILED if code else os.EX_OK)
            if not self._children.all:
                self._ended.set()
        elif was_serving and not self._has_been_ready:
            self._give_up("a process ended before all were ready")
        elif was_serving and child.index not in self._replacing:
            logger.error("process %d ended", child.index, extra={"fields": {"pid": child.pid, "code": code}})
            self._start(self._restart(child.index, child.was_ready))

    async def _restart(self, index: int, was_ready: float | None = None) -> None:
        """Starts a process in place of one that died, the later the more of them died."""
        delay = self._restarts.delay_after_death(index, was_ready, asyncio.get_running_loop().time())
        if delay is None:
            self._give_up("processes keep dying")
            return
        await asyncio.sleep(delay)
        if self._children.is_ending:
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
        """Starts a process beside the one that serves, and has that one leave once the new one is ready."""
        async with self._turn:
            if self._children.is_ending:
                return
            self._replacing.add(index)
            new = await self._start_ready(index)
            self._replacing.discard(index)
            old = self._children.serving.get(index)
            if new is not None:
                self._children.serving[index] = new
                self._children.tell()
                if old is not None:
                    old.order("leave")
            elif not self._children.is_ending:
                logger.error("the new process %d did not become ready: the one before it serves on", index)
                if old is None:  # it died meanwhile
                    self._start(self._restart(index))

    async def _start_ready(self, index: int) -> ChildProcess | None:
        """A new process once it is ready; None where it never is."""
        try:
            child = await self._start_child(index)
        except OSError:
            logger.exception("no process could be started")
            return None
        return child if await child.becomes_ready() else None

    def _on_end_signal(self) -> None:
        if self._children.is_ending:
            logger.warning("second signal: ending at once")
            self._code = FAILED
            self._children.kill()
            return
        self._start(self._end(self._settings.drain_delay))

    def _give_up(self, why: str) -> None:
        if not self._children.is_ending:
            logger.critical("%s: the service ends", why)
            self._code = FAILED
            self._start(self._end(0.0))

    async def _end(self, delay: float) -> None:
        """Ends every process in order: not ready, serving on for the delay, then no more connections."""
        self._children.is_ending = True
        logger.info("draining: not ready, serving for %s s more", delay)
        for child in self._children.all:
            child.order("drain")
        await asyncio.sleep(delay)
        self._distributor.close()
        for child in self._children.all:
            child.order("end")
        if not self._children.all:
            self._ended.set()
        await asyncio.sleep(2 * self._settings.shutdown_timeout + END_MARGIN_SECONDS)
        self._code = FAILED
        self._children.kill()

    async def _look_after_children(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            self._children.look()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something that nobody awaits; where it fails, everything ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_background_end)

    def _on_background_end(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a background task failed", exc_info=error)
            self._give_up("the parent process failed")
