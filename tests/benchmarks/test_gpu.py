from pathlib import Path

from benchmarks.gpu import inspect_nodes
from tests.service.tiny_graph import write_tiny_artifact


def test_an_artifact_is_inspected_in_a_process_of_its_own(tmp_path: Path) -> None:
    (row,) = inspect_nodes(write_tiny_artifact(tmp_path).directory, "cpu")
    assert row["provider"] == "CPU"
    assert row["nodes"] > 0
