import os
import subprocess
import sys

import pytest

CODE = """
import contextlib, io, os, sys
from {module} import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["--help"])
print(os.environ["OMP_WAIT_POLICY"], "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("module", "chosen", "expected"),
    [("export.cli", "", "passive"), ("export.heads.cli", "", "passive"), ("export.cli", "active", "active")],
)
def test_threads_are_told_to_sleep_before_torch_is_imported(module: str, chosen: str, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if chosen:
        environment["OMP_WAIT_POLICY"] = chosen
    command = [sys.executable, "-c", CODE.format(module=module)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603 - our own
    assert done.stdout == f"{expected} False\n"
