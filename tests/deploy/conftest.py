"""One Ray cluster for all tests of bulk encoding: its start takes longer than most of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from deploy.bulk.show import Cluster

CORES = 2


@pytest.fixture(scope="session")
def cluster() -> "Iterator[Cluster]":
    from deploy.bulk.show import Cluster  # noqa: PLC0415 - Ray is not installed for other tests

    with Cluster(CORES) as started:
        yield started
