"""The server: it listens, loads, serves, drains and ends.

The port is open while the model loads, so that probes have someone to ask. The first SIGTERM or SIGINT makes the
process not ready, lets it serve on for the drain delay, closes the port, lets running requests finish and ends with 0;
a second one ends it at once.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn

from service.app import create_app
from service.errors import ModelNotFound, one_line
from service.http.access import KeysError
from service.http.connection import ADMIN_CONNECTIONS, REFUSED_CONNECTIONS, ConnectionSlots
from service.http.protocol import BoundedProtocol
from service.listeners import FAILED, StartFailure, address_of, listening
from service.machine import keep_collections_short, make_room
from service.models import ServedModel
from service.observability.stages import BatchRecord, TracingUnavailable, open_tracing
from service.runner import Runner
from service.services import Readiness
from service.settings import Settings

LAST_ANSWERS_SECONDS = 1.0  # for requests cut off by the shutdown limit to say so
FORCED_END_SECONDS = 2.0  # after a second signal, whatever still loads or runs
STALLED_SECONDS = 2.0  # without progress, after which a client may be cut off for others
CUT_CONNECTIONS = 32  # at once, of those without a request
CUT_INTERVAL = 0.05  # seconds between two looks for such a client: each goes through all connections
LAG_INTERVAL = 0.1  # seconds between two measurements of the event loop

Load = Callable[[Settings, Callable[[BatchRecord], None]], Runner]
"""Makes the runner, on a thread."""

logger = logging.getLogger(__name__)


def serve(settings: Settings, load: Load | None = None) -> int:
    """Runs the service until it is told to end; returns the exit code: 0 after a graceful end, 1 after a forced one.

    Raises:
        StartFailure: the port is taken, the API keys or the tracing cannot be used, or no model loads.
    """
    with listening(settings) as (resolved, listeners):
        return Server(resolved, Readiness(), load or load_runner, address_of(listeners[0])).run_to_end(listeners)


def load_runner(settings: Settings, on_batch: Callable[[BatchRecord], None]) -> Runner:
    """Loads the artifact that the settings name."""
    return Runner.load(settings.model, settings, on_batch=on_batch)


class Server(uvicorn.Server):
    """uvicorn's server with a loading phase before, and a draining phase after, its own life.

    `address` is where clients reach it, for the log. Making one raises `StartFailure` as `serve` does.
    """

    def __init__(self, settings: Settings, readiness: Readiness, load: Load, address: str) -> None:
        try:
            self._tracing = open_tracing(settings.trace_endpoint, settings.trace_share)
            app, self._services = create_app(settings, readiness, self._tracing)
        except (TracingUnavailable, KeysError) as error:
            raise StartFailure(str(error)) from error
        besides = REFUSED_CONNECTIONS + (0 if settings.admin_port is None else ADMIN_CONNECTIONS)
        self.slots = ConnectionSlots(make_room(settings.max_connections, besides=besides), settings.admin_port)
        protocol = functools.partial(
            BoundedProtocol,
            settings=settings,
            slots=self.slots,
            early=self._services.early_refusals,
            on_refused=self._services.metrics.count_refusal,
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,  # type: ignore[arg-type]  # called as a class would be
                ws="none",
                loop="auto",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing here depends on the client's address, and trusting a header costs
                timeout_keep_alive=settings.keep_alive_timeout,  # type: ignore[arg-type]  # call_later takes floats
                timeout_graceful_shutdown=settings.shutdown_timeout,  # type: ignore[arg-type]  # as does wait_for
            )
        )
        self.readiness = readiness
        self.settings = settings
        self._load = load
        self._address = address
        self._loader: threading.Thread | None = None
        self._services.models.load = self._load_model
        for model in self._services.models:
            model.answers.on_full = self._cut_stalled
        self._services.body_budget.on_full = self._cut_slow_sender
        self.slots.on_full = self._cut_unused
        self._next_cut: dict[str, float] = {}  # by the property that is looked at
        self._background: set[asyncio.Task[None]] = set()
        self.failure: StartFailure | None = None  # why the process ends
        self.was_forced = False  # by a second signal

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]  # only entered
        """Installs nothing: uvicorn would end the process with the signal's own code, and we end it with 0."""
        return contextlib.nullcontext()

    @property
    def connections(self) -> list[Any]:
        """The protocol of every open connection."""
        return list(self.server_state.connections)

    def run_to_end(self, listeners: list[socket.socket]) -> int:
        """Runs until it ends; returns and raises what `serve` does."""
        self.run(sockets=listeners)
        if self._tracing is not None:
            self._tracing.close()
        if self.failure is not None:
            raise self.failure
        code = FAILED if self.was_forced else os.EX_OK
        if self._loader is not None and self._loader.is_alive():  # inside of a library: it must not outlive Python
            atexit.register(os._exit, code)
        return code

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Opens the port, then starts to load."""
        self.handle_signals()
        await super().startup(sockets)
        logger.info("loading %s; probes are answered on %s", self.settings.model, self._address)
        self.in_background(self._become_ready())
        self.in_background(self._check_connections())
        self.in_background(watch_loop_lag(self._services.metrics.loop_lag.observe))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the port, waits for running requests, then for the workers."""
        logger.info("closing the port, %d requests are running", len(self.server_state.tasks))
        await super().shutdown(sockets)
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=LAST_ANSWERS_SECONDS)
        timeout = 0.0 if self.was_forced else self.settings.shutdown_timeout
        loaded = [model.loaded for model in self._services.models if model.loaded is not None]
        await asyncio.gather(*(asyncio.to_thread(runner.close, timeout) for runner in loaded))
        logger.info("ended")

    def handle_signals(self) -> None:
        """Has SIGTERM, SIGINT and SIGHUP drain the process, and a second one end it; nohup's SIGHUP stays ignored."""
        ends = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            ends.append(signal.SIGHUP)
        for number in ends:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def on_ready(self) -> None:
        """The process takes traffic from now on."""
        logger.info("listening on %s", self._address)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a task that no other awaits; if it fails, the process ends, for a `StartFailure` without a traceback."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_background_end)

    def _on_background_end(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            if not isinstance(error, StartFailure):
                logger.error("a background task failed; the process ends", exc_info=error)
                error = StartFailure(f"cannot go on: {one_line(error)}")
            self.failure = self.failure or error
            self.should_exit = True

    async def _check_connections(self) -> None:
        loop = asyncio.get_running_loop()
        interval = min(1.0, self.settings.receive_timeout / 4, self.settings.send_timeout / 4)  # close enough to each
        while True:
            await asyncio.sleep(interval)
            self._services.early_refusals.report()
            for connection in self.connections:
                try:
                    connection.enforce_timeouts(loop.time())
                except Exception:  # the timeouts of all others go on
                    logger.exception("a connection's timeouts failed; it is closed")
                    connection.transport.abort()

    def _cut_stalled(self) -> None:
        """Cuts off the client that has read nothing for longest, whose answer occupies the bytes of others'."""
        what = "answers: the client that has read nothing for longest is cut off"
        for one in self._held_up("stalled_since", what)[:1]:
            one.transport.abort()

    def _cut_slow_sender(self) -> None:
        """Refuses the largest body that does not end: clients that send no more would keep all others out."""
        senders = self._held_up("sending_since", "request bodies: the largest of those that do not end is refused")
        if senders:
            max(senders, key=lambda one: int(one.body_bytes)).refuse_body()

    def _cut_unused(self) -> None:
        """Closes connections that have waited longest for a request: clients that hold all would keep others out."""
        what = "connections: those that have waited longest for a request are closed"
        for one in self._held_up("unused_since", what)[:CUT_CONNECTIONS]:
            one.transport.close()

    def _held_up(self, since: str, what: str) -> list[Any]:
        """The connections that have been in a state for too long, the longest first; none if somebody has just looked.

        `since` is the property that says since when; `what` there is no room for, and what is done, is logged.
        """
        now = asyncio.get_running_loop().time()
        if now < self._next_cut.get(since, 0.0):
            return []
        self._next_cut[since] = now + CUT_INTERVAL
        starts = {one: getattr(one, since) for one in self.connections}
        found = [one for one, start in starts.items() if start is not None and start <= now - STALLED_SECONDS]
        if found:
            logger.info("no room for %s", what)
        return sorted(found, key=lambda one: float(starts[one]))

    async def _become_ready(self) -> None:
        """Loads the models, one after the other. If none loads the process ends, since it could never serve."""
        models = self._services.models
        async with models.changing:  # one that was removed while it loads would come back
            for model in list(models):
                await self._load_model(model)
        failures = [model.failure for model in models if model.failure]
        if len(failures) == len(models):
            raise StartFailure("; ".join(failures))
        for model in models:  # the others are served
            if model.failure:
                logger.error(model.failure)
                self._services.metrics.of_model(model.name)  # whose series say that it is not ready
        try:
            if self.settings.default:
                models.find(self.settings.default)
        except ModelNotFound as error:
            raise StartFailure(f"--default {self.settings.default}: {error.message}") from error
        keep_collections_short()
        self.readiness.start()
        self.on_ready()

    async def _load_model(self, model: ServedModel) -> None:
        """Loads a model and has it answer; one that fails says why."""
        started = time.monotonic()
        try:
            runner = await self._load_on_thread(model)
            seconds = time.monotonic() - started
            try:
                labels = self._services.models.start(model, runner, seconds)
            except ValueError:
                await asyncio.to_thread(runner.close, 0.0)
                raise
            runtime = runner.runtime
            details = {
                "computes_in": runtime.computes_in or runner.manifest.precision,
                "instructions": runtime.instructions,
                "workers": runtime.workers,
                "intra_op_threads": runtime.intra_op_threads,
                "load_s": round(seconds, 3),
            }
            logger.info("model loaded", extra={"fields": {**labels, **details}})
        except Exception as error:
            logger.debug("loading failed", exc_info=error)
            model.failure = f"cannot load {model.directory}: {one_line(error)}"

    async def _load_on_thread(self, model: ServedModel) -> Runner:
        """Loads on a thread of its own, which the end of the process does not wait for."""
        loaded: concurrent.futures.Future[Runner] = concurrent.futures.Future()
        loaded.set_running_or_notify_cancel()  # a caller that stops waiting does not cancel it
        settings = self.settings.model_copy(update={"model": model.directory})

        def load() -> None:
            try:
                loaded.set_result(self._load(settings, model.observe_batch))
            except BaseException as error:  # whatever it is, somebody waits for it
                loaded.set_exception(error)

        self._loader = threading.Thread(target=load, name="load", daemon=True)
        self._loader.start()
        return await asyncio.wrap_future(loaded)

    def _on_signal(self) -> None:
        if self.readiness.is_draining:
            logger.warning("second signal: ending at once")
            self.was_forced = self.force_exit = self.should_exit = True
            asyncio.get_running_loop().call_later(FORCED_END_SECONDS, _end_now)  # no thread is waited for
            return
        self.readiness.drain()
        self.in_background(self._drain())

    async def _drain(self) -> None:
        delay = self.settings.drain_delay
        logger.info("draining: not ready, serving for %s s more", delay)
        await asyncio.sleep(delay)
        self.should_exit = True


async def watch_loop_lag(observe: Callable[[float], None], interval: float = LAG_INTERVAL) -> None:
    """Reports once an interval, forever, how many seconds late a timer was, exact to a millisecond."""
    while True:
        due = time.monotonic() + interval
        await asyncio.sleep(interval)
        observe(max(0.0, time.monotonic() - due))


def _end_now() -> None:
    logging.shutdown()
    os._exit(FAILED)
