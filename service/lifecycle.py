"""The server's life: it listens, loads, serves, drains and ends.

The port is open while the model loads, so that probes have someone to ask. The first SIGTERM or SIGINT makes the
process not ready, lets it serve on for the drain delay, closes the port, lets running requests finish and ends with 0;
a second one ends it at once.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn

from service.errors import one_line
from service.http.uvicorn_parts import HttpServer
from service.machine.cpu import core_limit
from service.machine.listener import FAILED, StartFailure
from service.machine.loop_lag import watch_loop_lag
from service.machine.memory import memory_limit
from service.observability.batch_record import BatchRecord
from service.runner import Runner
from service.services import Services
from service.settings import Settings

LAST_ANSWERS_SECONDS = 1.0  # for requests cut off by the shutdown limit to say so
FORCED_END_SECONDS = 2.0  # after a second signal, whatever still loads or runs

Load = Callable[[Settings, Callable[[BatchRecord], None]], Runner]

logger = logging.getLogger(__name__)


class Server(HttpServer):
    """uvicorn's server with a loading phase before, and a draining phase after, its own life.

    Attributes:
        failure: why the process ends before it was ready, or None.
        was_forced: whether a second signal cut the end short.

    Args:
        config: uvicorn's.
        services: of the app.
        load: makes the runner, on a thread.
        address: where clients reach it, for the log.
        check_interval: seconds between two looks at every connection.
    """

    def __init__(
        self, config: uvicorn.Config, services: Services, load: Load, address: str, check_interval: float
    ) -> None:
        super().__init__(config)
        self._services = services
        self.readiness = services.readiness
        self._load = load
        self._address = address
        self._check_interval = check_interval
        services.metrics.set_limits(
            cores=core_limit(), memory_bytes=memory_limit(), queue_tokens=services.settings.max_queue_tokens
        )
        self._background: set[asyncio.Task[None]] = set()
        self.failure: StartFailure | None = None
        self.was_forced = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Opens the port, then starts to load."""
        self.handle_signals()
        await super().startup(sockets)
        logger.info("loading %s; probes are answered on %s", self._services.settings.model, self._address)
        self.in_background(self._become_ready())
        self.in_background(self._check_connections())
        self.in_background(watch_loop_lag(self._services.metrics.loop_lag.observe))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the port, waits for running requests, then for the workers."""
        logger.info("closing the port, %d requests are running", len(self.requests))
        await super().shutdown(sockets)
        if self.requests:
            await asyncio.wait(self.requests, timeout=LAST_ANSWERS_SECONDS)
        runner = self.readiness.loaded_runner
        if runner is not None:
            timeout = 0.0 if self.was_forced else self._services.settings.shutdown_timeout
            await asyncio.to_thread(runner.close, timeout)
        logger.info("ended")

    def handle_signals(self) -> None:
        """Has SIGTERM and SIGINT drain the process, and a second one end it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def on_ready(self) -> None:
        """The process takes traffic from now on."""
        logger.info("listening on %s", self._address)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something that nobody awaits; where it fails, the process ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_background_end)

    def _on_background_end(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            logger.error("a background task failed; the process ends", exc_info=error)
            self.failure = self.failure or StartFailure(f"cannot go on: {one_line(error)}")
            self.should_exit = True

    async def _check_connections(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._check_interval)
            self._check_each(loop.time())
            self._services.early_refusals.report()

    def _check_each(self, now: float) -> None:
        """Not in the loop above, which would hold on to the last connection of all until the next one comes."""
        for connection in self.connections:
            try:
                connection.enforce_timeouts(now)
            except Exception:  # the timeouts of all others go on
                logger.exception("a connection's timeouts failed; it is closed")
                connection.transport.abort()

    async def _become_ready(self) -> None:
        """Loads the model. Whatever fails, also what is announced of it, ends the process, which could never serve."""
        settings, started = self._services.settings, time.monotonic()
        try:
            runner = await asyncio.to_thread(self._load, settings, self._services.metrics.observe_batch)
            self._report_model(runner, time.monotonic() - started)
            gc.collect()
            gc.freeze()  # what was loaded stays: no collection needs to look at it again
            self.readiness.start(runner)
        except Exception as error:
            logger.debug("loading failed", exc_info=error)
            self.failure = StartFailure(f"cannot load {settings.model}: {one_line(error)}")
            self.should_exit = True
            return
        self.on_ready()

    def _report_model(self, runner: Runner, load_seconds: float) -> None:
        manifest, runtime, metrics = runner.manifest, runner.runtime, self._services.metrics
        labels = {
            "model": manifest.model,
            "source": manifest.source.id,
            "revision": manifest.source.revision or "",
            "precision": manifest.precision,
            "weights_sha256": manifest.source.sha256,
            "provider": runtime.provider,
        }
        metrics.watch_queue(lambda: runner.queued_texts, lambda: runner.queued_tokens, lambda: runner.oldest_age)
        threads = {"workers": runtime.workers, "intra_op_threads": runtime.intra_op_threads}
        metrics.set_model(labels, **threads, load_seconds=load_seconds)
        logger.info("model loaded", extra={"fields": {**labels, **threads, "load_s": round(load_seconds, 3)}})

    def _on_signal(self) -> None:
        if self.readiness.is_draining:
            logger.warning("second signal: ending at once")
            self.was_forced = self.force_exit = self.should_exit = True
            asyncio.get_running_loop().call_later(FORCED_END_SECONDS, _end_now)  # no thread is waited for
            return
        self.readiness.drain()
        self.in_background(self._drain())

    async def _drain(self) -> None:
        delay = self._services.settings.drain_delay
        logger.info("draining: not ready, serving for %s s more", delay)
        await asyncio.sleep(delay)
        self.should_exit = True


def _end_now() -> None:
    logging.shutdown()
    os._exit(FAILED)
