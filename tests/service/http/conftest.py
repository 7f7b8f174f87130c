from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.process import ServerProcess, fake_server


@pytest.fixture(scope="module")
def narrow_server(fake_artifact: Path) -> Iterator[ServerProcess]:
    """Takes short headers only, and all the time that a client needs."""
    with fake_server(fake_artifact, "--max-header-bytes", "2000").wait_until_ready() as started:
        yield started
