"""What a wrong path to an artifact suggests."""

from pathlib import Path

import pytest

from model.artifact import MANIFEST
from service.near_misses import nearby_artifacts


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = Path("artifacts")
    for name in ("all-MiniLM-L6-v2", "int8", "bge-small", "zz"):
        (folder / name).mkdir(parents=True)
        (folder / name / MANIFEST).touch()
    (folder / "empty").mkdir()
    return folder


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("artifacts", ["all-MiniLM-L6-v2", "bge-small", "int8"]),
        ("artifacts/in8", ["int8"]),
        ("all-MiniLM-L6", ["all-MiniLM-L6-v2"]),
        ("artifacts/qqq", ["all-MiniLM-L6-v2", "bge-small", "int8"]),
        ("elsewhere/qqq", ["all-MiniLM-L6-v2", "bge-small", "int8"]),
    ],
)
def test_artifacts_near_a_wrong_path(artifacts: Path, given: str, names: list[str]) -> None:
    assert nearby_artifacts(Path(given)) == [artifacts / name for name in names]


def test_nothing_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert nearby_artifacts(Path("artifacts/int8")) == []
