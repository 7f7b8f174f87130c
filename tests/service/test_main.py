"""What is settled before anything is imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THREADS = """
import os
import service.__main__
import numpy as np
np.ones((600, 600)) @ np.ones((600, 600))
print(len(os.listdir("/proc/self/task")))
"""

WHILE_IT_IMPORTS = """
import os, runpy, signal, sys
class FirstImport:
    def find_spec(self, name, *_):
        if name in ("pydantic", "typer"):
            os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as of the first process of a container
sys.meta_path.insert(0, FirstImport())
sys.argv[1:] = ["serve", "nowhere"]
runpy.run_module("PROGRAM", run_name="__main__")
"""


@pytest.mark.parametrize(("program", "code"), [("service", 128 + signal.SIGTERM), ("polyhead", 130)])
def test_sigterm_ends_a_process_that_imports(program: str, code: int) -> None:
    command = [sys.executable, "-c", WHILE_IT_IMPORTS.replace("PROGRAM", program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    assert (done.returncode, done.stderr) == (code, "interrupted\n" if program == "polyhead" else "")


def test_numpys_products_take_no_threads_from_the_model() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(  # noqa: S603 - our own interpreter and source
        [sys.executable, "-c", THREADS], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"
