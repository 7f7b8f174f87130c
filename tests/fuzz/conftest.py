from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.process import ServerProcess


@pytest.fixture(scope="module")
def server(default_artifact: Path) -> Iterator[ServerProcess]:
    """A service of the module's own on the default model, which must log no error."""
    with ServerProcess("service", "--model", str(default_artifact)) as process:
        yield process.wait_until_ready()
        assert process.stop() == 0
        assert '"level":"error"' not in process.log
