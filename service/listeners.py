"""The sockets that the service listens on, by its settings, and what to say if it cannot."""

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from service.settings import Settings

BACKLOG = 2048  # connections the kernel holds for us while the event loop is busy
FAILED = 1  # exit code of a process that could not start, could not go on, or was ended at once

logger = logging.getLogger(__name__)


class StartFailure(Exception):
    """The process cannot start; the message is one line for a person."""


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[tuple[Settings, list[socket.socket]]]:
    """Listens on the first port or the Unix socket, then on the admin port if there is one.

    Yields:
        The settings, with the admin port that a 0 became, and the sockets, which are closed at the end.

    Raises:
        StartFailure: the message says which of them cannot be listened on, why, and what to change.
    """
    with contextlib.ExitStack() as stack:
        first = bind(settings.host, settings.port) if settings.uds is None else bind_unix(settings.uds)
        listeners = [stack.enter_context(first)]  # the file of a Unix socket stays: the next server replaces it
        if settings.admin_port is not None:
            listeners.append(stack.enter_context(bind(settings.host, settings.admin_port, flag="--admin-port")))
            logger.info("metrics and documentation are on %s", address_of(listeners[1]))
            settings = settings.model_copy(update={"admin_port": listeners[1].getsockname()[1]})
        yield settings, listeners


def address_of(listener: socket.socket) -> str:
    """Where a socket listens, as a URL."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind(host: str, port: int, *, flag: str = "--port") -> socket.socket:
    """A socket that listens, or `StartFailure`; connections wait in the kernel until the server takes them.

    `::` is every address of the machine, IPv4 ones included if the system can. `flag` is what set the port, for errors.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        takes_both = address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=takes_both)
    except (OSError, UnicodeError) as error:
        raise StartFailure(f"cannot listen on {host}:{port}: {_reason(error, flag)}") from error


def bind_unix(path: Path) -> socket.socket:
    """The same on a Unix socket; the file of a server that is gone is replaced, no other file is."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            path.unlink()
        elif path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartFailure(f"cannot listen on {path}: {_reason(error, '--uds')}") from error
    return listener


def _reason(error: OSError | UnicodeError, flag: str) -> str:
    if isinstance(error, UnicodeError | socket.gaierror) or error.errno is None:
        return getattr(error, "strerror", None) or str(error)
    if error.errno != errno.EADDRINUSE:
        return os.strerror(error.errno)
    return f"{os.strerror(error.errno)}; another process listens there, choose another {flag}"
