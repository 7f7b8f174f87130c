"""Which process listens on a port, where the system tells: on Linux, for processes of the same user."""

import os
from pathlib import Path

_PROC = Path("/proc")
_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp (proc(5))
_SHOWN = 80  # characters of a command line


def find_listener(port: int) -> str | None:
    """`process 123 (python -m service ...)`, or None where it cannot be told."""
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(_PROC / "net" / table, port)}
    for process in _PROC.glob("[0-9]*") if sockets else ():
        try:
            if any(os.readlink(descriptor) in sockets for descriptor in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                return f"process {process.name} ({command[:_SHOWN]})"
        except OSError:
            continue  # another user's, or gone
    return None


def _listening(table: Path, port: int) -> list[str]:
    """Inodes of the sockets that listen on a port."""
    try:
        rows = [line.split() for line in table.read_text("ascii").splitlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port]
