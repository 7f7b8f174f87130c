"""`python -m deploy.bulk` as a process of its own, and the Ray nodes that it runs on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.lib.server import free_port
from tests.deploy.tools import ROOT

CORES = 2
NODE_ATTEMPTS = 5
CLUSTER = {
    **os.environ,
    # Nodes and drivers know each other by the token.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a token of at least this many characters",
    # A node that is gone is missed within three seconds; one that is only slow has as long as Ray gives it by default.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_failure_threshold": "10",
}


def command(model: Path, corpus: Path, output: Path, *more: str) -> list[str]:
    places = ["--model", str(model), "--input", str(corpus), "--output", str(output)]
    return [sys.executable, "-m", "deploy.bulk", *places, *more]


def encode(model: Path, corpus: Path, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = command(model, corpus, output, *more)
    return subprocess.run(  # noqa: S603 - our own program
        words, cwd=ROOT, env=CLUSTER, capture_output=True, text=True, timeout=300, check=False
    )


@contextmanager
def node(*flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Ray node on this machine, in a process group of its own, until the block ends. Ray gives its own processes some
    seconds to start, and ends if they need longer: then it is started again.
    """
    ray = Path(sys.executable).with_name("ray")
    words = [str(ray), "start", "--block", "--node-ip-address=127.0.0.1", "--disable-usage-stats", *flags]
    for _ in range(NODE_ATTEMPTS):
        with subprocess.Popen(  # noqa: S603 - Ray's
            words, env=CLUSTER, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            try:
                assert process.stdout is not None
                if any(b"Ray runtime started" in line for line in process.stdout):
                    yield process
                    return
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError(f"no Ray node began in {NODE_ATTEMPTS} attempts: {' '.join(words)}")


class Cluster:
    """A head that computes nothing, and one node that does. Use it in a `with` block.

    Attributes:
        address: of the head.
    """

    def __init__(self) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._head = node("--head", "--num-cpus=0", f"--port={port}", "--include-dashboard=false")
        self._node = ExitStack()

    def __enter__(self) -> "Cluster":
        self._head.__enter__()
        self.replace_node(CORES)
        return self

    def replace_node(self, cores: int) -> None:
        """Kills the node, and starts another one."""
        self._node.close()
        self._node.enter_context(node("--address", self.address, f"--num-cpus={cores}"))

    def __exit__(self, *failure: object) -> None:
        self._node.close()
        self._head.__exit__(None, None, None)
