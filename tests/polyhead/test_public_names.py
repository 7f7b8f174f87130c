"""What `import polyhead` offers."""

import subprocess
import sys

import pytest

import polyhead
import polyhead.engine
import service.errors
import service.local.calls
from model.artifact import ArtifactError
from polyhead import Engine


def test_public_names_are_those_of_the_packages_below() -> None:
    assert Engine is polyhead.engine.Engine
    assert polyhead.Encoded is service.local.calls.Encoded
    assert polyhead.ServiceError is service.errors.ServiceError
    assert polyhead.ArtifactError is ArtifactError
    assert all(hasattr(polyhead, name) for name in dir(polyhead))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Motor'; it has ArtifactError, Encoded, Engine"):
        getattr(polyhead, "Motor")  # noqa: B009 - a type checker knows that it is not there


def test_help_loads_nothing_heavy() -> None:
    program = """
import sys
from polyhead.cli import main
main(["--help"])
print(sorted({"numpy", "onnxruntime", "pydantic", "torch"} & set(sys.modules)), file=sys.stderr)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert run.stderr == "[]\n"
