"""The dashboard drawn from made-up data: every panel, and data that is hard to draw."""

import math
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from deploy.observability.demo import main
from deploy.observability.picture import draw, read_panels
from deploy.observability.scrape import Prometheus, Series

INSTANCE = {"instance": "a:8000", "model": "m", "precision": "int8", "le": "+Inf"}
KINDS: tuple[tuple[float, ...], ...] = ((1.0, 2.0, 4e12), (0.0, math.nan), (math.nan,), ())


def made_up(asked: list[str]) -> Prometheus:
    """Answers with something else every time: huge, nothing but zeros, no number, nothing at all."""

    def query(expression: str, at: float) -> list[Series]:
        asked.append(expression)
        return [Series(INSTANCE, [at], [value]) for value in KINDS[len(asked) % len(KINDS)][-1:]]

    def query_range(expression: str, start: float, end: float, step: float) -> list[Series]:
        asked.append(expression)
        found = KINDS[len(asked) % len(KINDS)]
        times = np.arange(start, end, step)[: len(found)].tolist()
        edges = ("0.1", "1.0", "+Inf") if found else ()
        return [Series({**INSTANCE, "le": le}, times, [one * (1 + n) for one in found]) for n, le in enumerate(edges)]

    return Mock(spec=Prometheus, query=query, query_range=query_range)


def test_every_panel_is_drawn_whatever_its_data(tmp_path: Path) -> None:
    asked: list[str] = []
    panels, start = list(read_panels()), 1_700_000_000.0
    draw(panels, made_up(asked), start, start + 240, tmp_path / "made-up.png")
    assert len(asked) == sum(len(panel["targets"]) for panel in panels)
    assert not [expression for expression in asked if "$" in expression]
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
