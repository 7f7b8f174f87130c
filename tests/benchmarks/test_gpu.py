import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu
from tests.service.tiny_graph import write_tiny_artifact


def test_the_nodes_of_an_artifact_are_counted_by_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_tiny_artifact(tmp_path).directory

    def run(command: list[str], **_: object) -> SimpleNamespace:  # what a process of its own does
        gpu._print_operators(Path(command[-2]), command[-1])
        return SimpleNamespace(returncode=0, stdout=capsys.readouterr().out)

    monkeypatch.setattr(subprocess, "run", run)
    (row,) = gpu.inspect_nodes(directory, "cpu")
    assert row["provider"] == "CPU"
    assert row["nodes"] > 0
