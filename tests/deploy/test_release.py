"""One version, in every place where one stands."""

import re
import shutil
from pathlib import Path

import pytest

from deploy.release import PLACES, main, versions, write_version
from tests.deploy.tools import ROOT, VERSION


def test_no_place_is_forgotten() -> None:
    """Whatever below deploy/ names our image or version with a number is in the list."""
    files = [path for path in (ROOT / "deploy").rglob("*") if path.suffix in {".yaml", ".conf", ".json"}]
    ours = re.compile(r"(polyhead(-\w+)?[:@, ]|newTag: |version: )[^\n]*\d+\.\d+\.\d+")
    holders = {path.relative_to(ROOT).as_posix() for path in files if ours.search(path.read_text())}
    assert holders - {"deploy/grafana/polyhead.json"} <= set(PLACES)


def test_every_place_has_the_projects_version_and_a_release_changes_all_of_them(tmp_path: Path) -> None:
    for name in PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    before = list(versions())
    assert {name for name, _ in before} == set(PLACES)
    assert {version for _, version in before} == {VERSION}
    write_version("12.34.56", tmp_path)
    assert list(versions(tmp_path)) == [(name, "12.34.56") for name, _ in before]


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "1.2.3rc1"])
def test_what_is_no_version_is_refused(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([version])
    assert "expected MAJOR.MINOR.PATCH" in capsys.readouterr().err
