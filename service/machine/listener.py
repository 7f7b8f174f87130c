"""The sockets that the service listens on, and what to say where it cannot."""

import errno
import os
import socket

BACKLOG = 2048  # connections the kernel holds for us while the event loop is busy
ANY_IPV6 = "::"


class StartFailure(Exception):
    """The process cannot start; the message is one line for a person."""


def bind(host: str, port: int, *, flag: str = "--port") -> socket.socket:
    """A socket that listens; connections wait in the kernel until the server takes them.

    Args:
        host: name or address; `::` is every address of the machine, IPv4 ones included where the system can.
        port: 0 for any.
        flag: the setting that the port came from, for errors.

    Raises:
        StartFailure: the address cannot be listened on; the message says what to change.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        takes_both = address[0] == ANY_IPV6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=takes_both)
    except UnicodeError as error:
        raise StartFailure(f"cannot listen on {host}:{port}: that is no host name") from error
    except OSError as error:
        raise StartFailure(f"cannot listen on {host}:{port}: {_reason(error, flag)}") from error


def address_of(listener: socket.socket) -> str:
    """Where a socket listens, as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _reason(error: OSError, flag: str) -> str:
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    if error.errno != errno.EADDRINUSE:
        return os.strerror(error.errno)
    return f"{os.strerror(error.errno)}; another process listens there, choose another {flag}"
