from pathlib import Path

import pytest

from benchmarks.gpu import InspectionFailed, inspect_nodes
from tests.service.tiny_graph import write_tiny_artifact


def test_an_artifact_is_inspected_in_a_process_of_its_own(tmp_path: Path) -> None:
    (row,) = inspect_nodes(write_tiny_artifact(tmp_path).directory, "cpu")
    assert row["provider"] == "CPU"
    assert row["nodes"] > 0


def test_a_provider_that_is_not_there_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(InspectionFailed, match="provider is 'tpu': expected one of cpu, cuda"):
        inspect_nodes(write_tiny_artifact(tmp_path).directory, "tpu")
