"""Puts the process together: sockets, app, limits of connections, uvicorn's configuration; then runs the server."""

import functools
import logging
import os
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from service.app import create_app
from service.errors import one_line
from service.http.connection import ConnectionLimits
from service.http.connection_limit import (
    ADMIN_CONNECTIONS,
    REFUSED_CONNECTIONS,
    ConnectionLimitProtocol,
    ConnectionSlots,
)
from service.http.keys import KeysError
from service.lifecycle import Load, Server
from service.listeners import open_listeners, remove_socket, with_admin_port
from service.machine.descriptors import make_room
from service.machine.listener import FAILED, StartFailure, address_of
from service.observability.batch_record import BatchRecord
from service.observability.request_trace import Tracing, TracingUnavailable, open_tracing
from service.readiness import Readiness
from service.runner import Runner
from service.services import Services
from service.settings import Settings

MakeServer = Callable[[uvicorn.Config, Services, ConnectionSlots, float], Server]
"""Makes the server, of uvicorn's configuration, the app's services, its slots and seconds between looks at them."""

logger = logging.getLogger(__name__)


def serve(settings: Settings, load: Load | None = None) -> int:
    """Runs the service until it is told to end.

    Args:
        settings: everything that can be set.
        load: makes the runner, on a thread; `Runner.load` unless a test has its own.

    Returns:
        The exit code: 0 after a graceful end, 1 after a forced one.

    Raises:
        StartFailure: the port is taken, the model does not load, or the system gives no thread or descriptor.
    """
    listeners = open_listeners(settings)
    settings = with_admin_port(settings, listeners)

    def make(config: uvicorn.Config, services: Services, _slots: ConnectionSlots, interval: float) -> Server:
        return Server(config, services, load or load_runner, address_of(listeners[0]), interval)

    try:
        return run_server(settings, Readiness(), make, listeners)
    finally:
        remove_socket(settings)


def run_server(settings: Settings, readiness: Readiness, make: MakeServer, listeners: list[socket.socket]) -> int:
    """Runs a server until it ends. As `serve`, but for where its connections come from."""
    tracing = _open_tracing(settings)
    app, services = _create_app(settings, readiness, tracing)
    limits, slots = _connection_limits(settings), _connection_slots(settings)
    server = make(_uvicorn_config(app, settings, limits, slots, services), services, slots, limits.check_interval)
    try:
        server.run(sockets=listeners)
    except (OSError, RuntimeError) as error:  # no descriptor for the loop, or no thread, which it needs to end too
        logger.error("the server failed", exc_info=error)
        raise server.failure or StartFailure(f"cannot serve: {one_line(error)}") from error
    if tracing is not None:
        tracing.close()
    if server.failure is not None:
        raise server.failure
    return FAILED if server.was_forced else os.EX_OK


def _open_tracing(settings: Settings) -> Tracing | None:
    try:
        return open_tracing(settings.trace_endpoint, settings.trace_share)
    except TracingUnavailable as error:
        raise StartFailure(str(error)) from error


def _connection_limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        max_header_bytes=settings.max_header_bytes,
        receive_timeout=settings.receive_timeout,
        send_timeout=settings.send_timeout,
        min_send_rate=settings.min_send_rate,
    )


def _uvicorn_config(
    app: ASGIApp, settings: Settings, limits: ConnectionLimits, slots: ConnectionSlots, services: Services
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=functools.partial(  # type: ignore[arg-type]  # called as a class would be
            ConnectionLimitProtocol,
            slots=slots,
            limits=limits,
            on_refused=services.metrics.count_refusal,
            early=services.early_refusals,
        ),
        ws="none",
        loop="auto",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here depends on the client's address; trusting a header for it would cost, too
        timeout_keep_alive=settings.keep_alive_timeout,  # type: ignore[arg-type]  # given to call_later, which takes floats
        timeout_graceful_shutdown=settings.shutdown_timeout,  # type: ignore[arg-type]  # given to asyncio.wait_for, which takes floats
    )


def _connection_slots(settings: Settings) -> ConnectionSlots:
    besides = REFUSED_CONNECTIONS + (0 if settings.admin_port is None else ADMIN_CONNECTIONS)
    return ConnectionSlots(make_room(settings.max_connections, besides=besides), settings.admin_port)


def _create_app(settings: Settings, readiness: Readiness, tracing: Tracing | None) -> tuple[ASGIApp, Services]:
    try:
        return create_app(settings, readiness, tracing)
    except KeysError as error:
        raise StartFailure(str(error)) from error


def load_runner(settings: Settings, on_batch: Callable[[BatchRecord], None]) -> Runner:
    """What `load` is unless a test has its own."""
    return Runner.load(settings.model, settings, on_batch=on_batch)
