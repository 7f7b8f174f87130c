"""nginx in front of replicas: `deploy/nginx/polyhead.conf` with other ports, run from a folder of its own."""

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.lib.client import Address
from benchmarks.lib.command import CannotMeasure
from benchmarks.lib.server import STOP_LIMIT, free_port, is_ready

CONFIG = Path(__file__).parents[2] / "deploy" / "nginx" / "polyhead.conf"
NEXT = "proxy_next_upstream error timeout"
RETRY = " non_idempotent"  # what a replica may have begun with is asked of the next, too
ANSWER_MISSING = "while reading response header from upstream"  # nginx's words; "while connecting" lost nothing
READY_LIMIT = 10.0  # seconds

_WRAPPER = """
worker_processes 1;
pid nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    {config}
}}
"""


class NginxFailed(CannotMeasure):
    """nginx is not there, or did not come up; the message holds what it wrote."""


def configuration(port: int, replicas: Sequence[int], *, retry: bool = False, path: Path = CONFIG) -> str:
    """The file as it stands, on these ports.

    Raises:
        ValueError: the file no longer names what is to be replaced.
    """
    text = path.read_text()
    swaps = {"127.0.0.1:8000": f"127.0.0.1:{port}"}
    swaps |= {f"127.0.0.1:{8001 + index}": f"127.0.0.1:{replica}" for index, replica in enumerate(replicas)}
    if retry:
        swaps[NEXT] = NEXT + RETRY
    for old, new in swaps.items():
        if old not in text:
            raise ValueError(f"{path} does not hold {old!r}")
        text = text.replace(old, new)
    return text


@dataclass(frozen=True, slots=True)
class Nginx:
    """A running nginx.

    Attributes:
        address: where it listens.
        log: its errors.
    """

    address: Address
    log: Path

    def unanswered(self, replica: int) -> int:
        """Requests that the replica on this port had been sent when its connections broke."""
        upstream = f'upstream: "http://127.0.0.1:{replica}/'
        return sum(upstream in line and ANSWER_MISSING in line for line in self.log.read_text().splitlines())


@contextmanager
def nginx(
    replicas: Sequence[int], *, retry: bool = False, path: Path = CONFIG, ready: str = "/readyz"
) -> Iterator[Nginx]:
    """Runs nginx until the block ends.

    Args:
        replicas: ports on 127.0.0.1.
        retry: whether a request that was sent may be sent again, to another replica.
        path: of the configuration.
        ready: what answers 200 once nginx and its replicas do.

    Raises:
        NginxFailed: it is not installed, or did not start.
    """
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        raise NginxFailed("nginx is not installed: Debian's package nginx-light brings it")
    with TemporaryDirectory() as folder:
        port = free_port()
        config = Path(folder) / "nginx.conf"
        config.write_text(_WRAPPER.format(config=configuration(port, replicas, retry=retry, path=path)))
        log = Path(folder) / "error.log"
        command = [program, "-p", folder, "-c", str(config), "-e", str(log), "-g", "daemon off;"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - found above
        try:
            _wait(process, Address("127.0.0.1", port), ready, log)
            yield Nginx(Address("127.0.0.1", port), log)
        finally:
            process.terminate()
            process.wait(STOP_LIMIT)


def _wait(process: subprocess.Popen[bytes], address: Address, ready: str, log: Path) -> None:
    deadline = time.monotonic() + READY_LIMIT
    while not is_ready(address, ready):
        if process.poll() is not None or time.monotonic() > deadline:
            raise NginxFailed(log.read_text()[-2000:])
        time.sleep(0.01)
