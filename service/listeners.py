"""Where the service listens, by its settings: the first port or a Unix socket, and the admin port."""

import logging
import socket
from collections.abc import Sequence

from service.machine.listener import address_of, bind, bind_unix
from service.settings import Settings

logger = logging.getLogger(__name__)


def open_listeners(settings: Settings) -> list[socket.socket]:
    """The sockets to listen on: the first port or the Unix socket, then the admin port where there is one.

    Raises:
        StartFailure: one of them is taken.
    """
    first = bind(settings.host, settings.port) if settings.uds is None else bind_unix(settings.uds)
    if settings.admin_port is None:
        return [first]
    admin = bind(settings.host, settings.admin_port, flag="--admin-port")
    logger.info("metrics and documentation are on %s", address_of(admin))
    return [first, admin]


def with_admin_port(settings: Settings, listeners: Sequence[socket.socket]) -> Settings:
    """The settings with the admin port that a 0 became."""
    if settings.admin_port is None:
        return settings
    return settings.model_copy(update={"admin_port": listeners[1].getsockname()[1]})


def remove_socket(settings: Settings) -> None:
    """Removes the file of the Unix socket, where the service listened on one."""
    if settings.uds is not None:
        settings.uds.unlink(missing_ok=True)
