"""Each picture of the experiment shows the rows that its claim is about, and only pictures with rows are drawn."""

import re
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

import pytest

from train.experiments.patterns.network import Row
from train.experiments.patterns.pictures import PICTURES, draw_pictures
from train.experiments.patterns.tasks import PLACES, TASKS
from train.experiments.patterns.training import MAIN, rows

SVG = "{http://www.w3.org/2000/svg}"


def found(row: Row) -> dict[str, Any]:
    """A row of patterns.json, with figures that differ from row to row."""
    mean = row.predicted - 0.001 * row.heads
    figures: dict[str, Any] = {"mean": mean, "low": mean - 0.01, "high": mean + 0.01, "steps": 100 * row.heads}
    if row.gated:
        figures["open_heads"] = [TASKS[row.task].needs, 8]
    if row.task == "two offsets":
        figures["place_weights"] = [[1 / (PLACES + 1)] * (PLACES + 1)] * 2
    curve = [(100, mean / 2), (200, mean)]
    return {**asdict(row), "needs": TASKS[row.task].needs, "predicted": row.predicted, "curve": curve, **figures}


def texts(picture: str) -> list[str]:
    root = ElementTree.fromstring(picture)  # noqa: S314 - drawn just above
    return [text.text or "" for text in root.iter(f"{SVG}text")]


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return draw_pictures([found(row) for row in rows(list(TASKS))])


def test_every_picture_is_drawn_small_and_the_same_each_time(drawn: dict[str, str]) -> None:
    assert list(drawn) == list(PICTURES)
    assert drawn == draw_pictures([found(row) for row in rows(list(TASKS))])
    assert max(map(len, drawn.values())) < 60_000


@pytest.mark.parametrize(
    ("name", "legend"),
    [
        (
            "patterns",
            [
                *("agreement", "one key", "count of three", "two offsets", "four keys", "own token"),
                *("agreement", "one key", "count of three", "two offsets", "four keys"),
            ],
        ),
        ("patterns-width", [f"{task}, {width}" for task in MAIN for width in (32, 64)] * 2),
        ("patterns-keys", ["one key", "predicted", "count of three", "predicted"]),
        ("patterns-values", []),
        ("patterns-layers", [f"{task}, h = 1" for task in MAIN] + ["four keys, h = 4", "four keys, h = 2"]),
        ("patterns-gates", ["the same places", "places asked for", "as needed"]),
        (
            "patterns-steps",
            ["agreement", "one key", "count of three", "two offsets", "h = 1", "h = 2", "h = 4", "h = 8", "h = 32"],
        ),
        ("patterns-offsets", ["seed 0", "seed 1", "with feed-forward", "attention alone", "predicted"]),
    ],
)
def test_lines_of_a_picture(drawn: dict[str, str], name: str, legend: list[str]) -> None:
    wanted = set(legend)
    assert [text for text in texts(drawn[name]) if text in wanted] == legend
    if not legend:
        assert [text for text in texts(drawn[name]) if re.fullmatch(r"\d+", text)] == ["1", "2", "4", "8", "32"]


def test_bars_of_gates_reach_from_the_fewest_to_the_most_heads() -> None:
    gated = found(Row("four keys", 8, 8, 8, gated=True)) | {"open_heads": [5, 8]}
    other = found(Row("agreement", 8, 8, 8, gated=True)) | {"open_heads": [1, 1]}
    picture = draw_pictures([gated, other])["patterns-gates"]
    heights = {
        kind: float(low) - float(high)
        for kind, low, high in re.findall(r'class="(\w) bar" d="M[\d.]+ ([\d.]+)V([\d.]+)"', picture)
    }
    assert heights["a"] == 0 < heights["b"]  # 1 to 1 for agreement, 5 to 8 for four keys


def test_pictures_without_rows_are_left_out() -> None:
    assert list(draw_pictures([found(Row("agreement", 2, 16, 16))])) == ["patterns", "patterns-steps"]
