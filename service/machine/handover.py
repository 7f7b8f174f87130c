"""Hands open connections from one process to another, over a pair of connected Unix sockets (unix(7), SCM_RIGHTS).

Whoever takes a connection goes on where the other one stopped: what the client sent meanwhile waits in the kernel.
"""

import socket

_MARK = b"c"  # each connection comes with one byte; a stream without bytes carries nothing


def give_connection(channel: socket.socket, descriptor: int) -> bool:
    """Hands a connection on; the caller's own descriptor stays open, and is his to close.

    Returns:
        False where the other side does not take any at present, or no more.
    """
    try:
        socket.send_fds(channel, [_MARK], [descriptor])
    except OSError:
        return False
    return True


def take_connection(channel: socket.socket) -> socket.socket | None:
    """The next connection; None where the other side hands on no more.

    Raises:
        BlockingIOError: none is there yet.
        OSError: one came, and this process has no descriptor for it.
    """
    mark, descriptors, _, _ = socket.recv_fds(channel, len(_MARK), 1)
    if not mark:
        return None
    if not descriptors:
        raise OSError("a connection was lost: no descriptor is left for it")
    return socket.socket(fileno=descriptors[0])
