"""One Ray cluster for all tests of bulk encoding: its start takes longer than most of them."""

from collections.abc import Iterator

import pytest

from tests.deploy.bulk_command import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started
