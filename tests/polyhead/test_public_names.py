"""What `import polyhead` offers."""

import subprocess
import sys

import pytest

import polyhead
from polyhead import public


def test_public_names_are_those_of_the_packages_below() -> None:
    assert all(getattr(polyhead, name) is getattr(public, name) for name in dir(polyhead))
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
