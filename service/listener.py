"""The sockets that the service listens on, and what to say where it cannot."""

import errno
import os
import socket

from service.port_owner import find_listener

BACKLOG = 2048  # connections the kernel holds for us while the event loop is busy


class StartFailure(Exception):
    """The process cannot start; the message is one line for a person."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; connections wait in the kernel until the server takes them.

    Raises:
        StartFailure: the address cannot be listened on; the message says what to change.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise StartFailure(f"cannot listen on {host}:{port}: {_reason(error, port)}") from error


def address_of(listener: socket.socket) -> str:
    """Where a socket listens, as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _reason(error: OSError, port: int) -> str:
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    if error.errno != errno.EADDRINUSE:
        return os.strerror(error.errno)
    return (
        f"{os.strerror(error.errno)}; {find_listener(port) or 'another process'} listens there, choose another --port"
    )
