"""Runs commands of `polyhead` in this process."""

from typing import Any

import pytest

from polyhead.cli import main


class Run:
    """Runs a command with its exit code checked."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.said = ""  # on standard error, by the last one

    def __call__(self, *given: Any, code: int = 0) -> str:
        """What a command prints; one that fails, what it says."""
        self._capsys.readouterr()
        assert main([str(word) for word in given]) == code
        printed, self.said = self._capsys.readouterr()
        return self.said if code else printed
