"""Each picture of the experiment shows the rows that its claim is about, and only pictures with rows are drawn."""

import re
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from train.experiments.patterns.network import Row
from train.experiments.patterns.report import PICTURES, draw_pictures
from train.experiments.patterns.tasks import PLACES, TASKS
from train.experiments.patterns.training import MAIN, rows


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


NARROW_AND_WIDE = [f"{task}, {width}" for task in MAIN for width in (32, 64)]
LEGENDS = {
    "patterns": "agreement|one key|count of three|two offsets|four keys|own token|"
    "agreement|one key|count of three|two offsets|four keys",
    "patterns-width": "|".join(NARROW_AND_WIDE * 2),
    "patterns-keys": "one key|predicted|count of three|predicted",
    "patterns-values": "1|2|4|8|32",  # the sizes: one line needs no name
    "patterns-layers": "one key, h = 1|two offsets, h = 1|four keys, h = 1|four keys, h = 4|four keys, h = 2",
    "patterns-gates": "the same places|places asked for|as needed",
    "patterns-steps": "agreement|one key|count of three|two offsets|h = 1|h = 2|h = 4|h = 8|h = 32",
    "patterns-offsets": "seed 0|seed 1|with feed-forward|attention alone|predicted",
}


def test_every_picture_is_drawn_small_the_same_each_time_and_with_its_lines() -> None:
    drawn = draw_pictures([found(row) for row in rows(list(TASKS))])
    assert list(drawn) == list(PICTURES) == list(LEGENDS)
    assert drawn == draw_pictures([found(row) for row in rows(list(TASKS))])
    assert max(map(len, drawn.values())) < 60_000
    for name, legend in LEGENDS.items():
        root = ElementTree.fromstring(drawn[name])  # noqa: S314 - drawn just above
        shown = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
        assert [text for text in shown if text in legend.split("|")] == legend.split("|"), name


def test_bars_of_gates_reach_from_the_fewest_to_the_most_heads() -> None:
    gated = found(Row("four keys", 8, 8, 8, gated=True)) | {"open_heads": [5, 8]}
    other = found(Row("agreement", 8, 8, 8, gated=True)) | {"open_heads": [1, 1]}
    picture = draw_pictures([gated, other])["patterns-gates"]
    bars = re.findall(r'class="(\w) bar" d="M[\d.]+ ([\d.]+)V([\d.]+)"', picture)
    heights = {kind: float(low) - float(high) for kind, low, high in bars}
    assert heights["a"] == 0 < heights["b"]  # 1 to 1 for agreement, 5 to 8 for four keys


def test_pictures_without_rows_are_left_out() -> None:
    assert list(draw_pictures([found(Row("agreement", 2, 16, 16))])) == ["patterns", "patterns-steps"]
