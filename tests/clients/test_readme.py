"""The README's snippets for other APIs' clients, as they stand there, against the real server."""

import contextlib
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = README.split("\n## Clients\n")[1].split("\n## ")[0]
DEFAULT_URL = "http://127.0.0.1:8000"


def snippet(language: str, url: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)
    assert DEFAULT_URL in found
    return str(found).replace(DEFAULT_URL, url)


def test_openai(url: str, model: str) -> None:
    printed = io.StringIO()
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(printed):
        exec(snippet("python", url), names)  # noqa: S102 - our own README
    names["client"].close()
    assert printed.getvalue() == f"{model} 384\n"


def test_tei(url: str, encode: Any) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    ended = subprocess.run(["/bin/sh", "-c", snippet("sh", url)], capture_output=True, check=True)  # noqa: S603 - our own README
    (vector,) = json.loads(ended.stdout)
    assert vector == pytest.approx(encode("The cat sat on the mat.")[0], abs=1e-6)
