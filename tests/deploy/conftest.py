"""One Ray cluster for all tests of bulk encoding: its start takes longer than most of them."""

from collections.abc import Iterator

import pytest

from benchmarks.lib.server import free_port
from tests.deploy.bulk_command import CORES, node


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Of a cluster of one node."""
    port = free_port()
    with node("--head", f"--num-cpus={CORES}", f"--port={port}", "--include-dashboard=false"):
        yield f"127.0.0.1:{port}"
