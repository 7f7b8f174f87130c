"""What is settled before anything is imported."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
THREADS = """
import os
import service.__main__
import numpy as np
np.ones((600, 600)) @ np.ones((600, 600))
print(len(os.listdir("/proc/self/task")))
"""


def test_numpys_products_take_no_threads_from_the_model() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(  # noqa: S603 - our own interpreter and source
        [sys.executable, "-c", THREADS], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"
