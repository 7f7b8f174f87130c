"""`python -m deploy.bulk` as a process of its own."""

import subprocess
import sys
from pathlib import Path

from tests.deploy.tools import ROOT


def command(model: Path, corpus: Path, output: Path, *more: str) -> list[str]:
    places = ["--model", str(model), "--input", str(corpus), "--output", str(output)]
    return [sys.executable, "-m", "deploy.bulk", *places, *more]


def encode(model: Path, corpus: Path, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own program
        command(model, corpus, output, *more), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
