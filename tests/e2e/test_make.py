"""What `make` does before anything is installed: which Python it takes, and where torch comes from."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = "https://index.example/cpu"
ASKED = "no NVIDIA driver: asking https://index.example/cpu for the CPU build of torch"
OTHERWISE = "torch comes from the index that pip is set up for"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or Path("/proc/driver/nvidia").exists(), reason="Linux without an NVIDIA driver is meant"
)


def program(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def run(*command: str | Path, first_on_path: Path | None = None) -> tuple[int, str]:
    """Its exit status, and what it wrote."""
    path = ":".join(["/usr/bin", "/bin"] if first_on_path is None else [str(first_on_path), "/usr/bin", "/bin"])
    done = subprocess.run(  # noqa: S603 - our own programs
        list(map(str, command)),
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def pip(folder: Path, *, index_answers: bool = True, installs: bool = True) -> Path:
    """A Python whose pip writes what it is asked into `asked`, and has an index or not."""
    return program(
        folder / "python",
        f'echo "$@" >> {folder}/asked',
        f'case "$*" in *"index versions"*) exit {int(not index_answers)};; *) exit {int(not installs)};; esac',
    )


def asked(folder: Path) -> list[str]:
    path = folder / "asked"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("answers", "installs", "said_too", "times"),
    [
        (True, True, "", 2),
        (False, False, f"==> it cannot be reached: {OTHERWISE}\n", 1),
        (True, False, f"==> it could not be installed from there: {OTHERWISE}\n", 2),
    ],
)
def test_the_cpu_build_is_asked_of_its_index_and_what_fails_is_left_to_pip(
    tmp_path: Path, answers: bool, installs: bool, said_too: str, times: int
) -> None:
    status, said = run("deploy/cpu-torch", pip(tmp_path, index_answers=answers, installs=installs), INDEX)
    assert (status, said) == (0, f"==> {ASKED}\n{said_too}")
    assert len(asked(tmp_path)) == times
    if answers:
        (torch,) = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
        assert "--isolated" in asked(tmp_path)[-1]
        assert asked(tmp_path)[-1].endswith(f"--no-deps --index-url {INDEX} {torch}")


def test_no_index_is_asked_where_none_is_named_or_a_driver_is_there(tmp_path: Path) -> None:
    assert run("deploy/cpu-torch", pip(tmp_path), "") == (0, "")
    program(tmp_path / "nvidia-smi", "exit 0")
    assert run("deploy/cpu-torch", pip(tmp_path), INDEX, first_on_path=tmp_path) == (0, "")
    assert asked(tmp_path) == []


@pytest.mark.parametrize("version", ["(3, 10, 13)", "(3, 14, 0)", "nowhere"])
def test_a_python_of_another_version_or_of_none_is_refused_with_a_sentence(tmp_path: Path, version: str) -> None:
    """A Python that says it is of this version."""
    python: str | Path = version
    if version != "nowhere":
        python = program(tmp_path / "python", f'exec {sys.executable} -c "import sys; sys.version_info={version}; $2"')
    status, said = run("make", f"PYTHON={python}", f"VENV={tmp_path}/environment", f"{tmp_path}/environment/bin/python")
    assert status != 0
    assert f"{python} is not there, or it is no Python of 3.11 to 3.13: install one of python3.11" in said
    assert not (tmp_path / "environment").exists()
