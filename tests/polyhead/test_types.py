"""Type checkers read the annotations of an installed package only where it says that it has them (PEP 561)."""

import importlib.resources
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


@pytest.mark.parametrize("package", PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
def test_every_package_of_the_wheel_publishes_its_types(package: str) -> None:
    assert (importlib.resources.files(package) / "py.typed").is_file()
