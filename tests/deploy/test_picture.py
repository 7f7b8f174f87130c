"""The dashboard drawn from made-up data: every panel, and data that is hard to draw."""

import math
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from deploy.observability.demo import main
from deploy.observability.picture import draw, read_panels
from deploy.observability.scrape import Prometheus, Series

START, END = 1_700_000_000.0, 1_700_000_240.0
INSTANCE = {"instance": "a:8000", "model": "m", "precision": "int8", "le": "+Inf"}


KINDS: tuple[tuple[float, ...], ...] = ((1.0, 2.0, 4e12), (0.0, math.nan), (math.nan,), ())


class MadeUp(Prometheus):
    """Answers with something else every time: huge, nothing but zeros, no number, nothing at all."""

    def __init__(self) -> None:
        super().__init__(httpx.Client())
        self._client.close()
        self.asked: list[str] = []

    def query(self, expression: str, at: float) -> list[Series]:
        return [Series(INSTANCE, [at], [value]) for value in self._next(expression)[-1:]]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        values = self._next(expression)
        times = np.arange(start, end, step)[: len(values)].tolist()
        edges = ("0.1", "1.0", "+Inf") if values else ()
        return [
            Series({**INSTANCE, "le": le}, times, [value * (1 + rank) for value in values])
            for rank, le in enumerate(edges)
        ]

    def _next(self, expression: str) -> tuple[float, ...]:
        self.asked.append(expression)
        return KINDS[len(self.asked) % len(KINDS)]


def test_every_panel_is_drawn_whatever_its_data(tmp_path: Path) -> None:
    prometheus = MadeUp()
    panels = list(read_panels())
    draw(panels, prometheus, START, END, tmp_path / "made-up.png")
    assert len(prometheus.asked) == sum(len(panel.targets) for panel in panels)
    assert not [expression for expression in prometheus.asked if "$" in expression]
    with Image.open(tmp_path / "made-up.png") as picture:
        assert picture.width == 1200
        assert len(np.unique(np.asarray(picture))) > 5


def test_the_demonstration_without_an_artifact_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["demo.py", "--model", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"demo.py: {tmp_path} holds no manifest.json")
