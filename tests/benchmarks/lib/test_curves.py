from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from benchmarks.lib.curves import Curve, CurvePanel, draw_curves


def _elements(svg: str, tag: str) -> list[Element]:
    return list(ElementTree.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}"))  # noqa: S314 - our own


def _points(svg: str) -> list[list[tuple[float, float]]]:
    lines = [line.attrib["points"].split() for line in _elements(svg, "polyline")]
    return [[(float(x), float(y)) for x, y in (point.split(",") for point in line)] for line in lines]


def test_x_is_logarithmic_and_y_linear_from_zero() -> None:
    panel = CurvePanel("rates", [1, 10, 100], [Curve("ours", [0, 20, 40]), Curve("theirs", [40, 40, 40])])
    ours, theirs = _points(draw_curves("picture", [panel]))
    assert ours[1][0] - ours[0][0] == pytest.approx(ours[2][0] - ours[1][0], abs=0.11)  # a tenth is drawn
    assert ours[0][1] - ours[1][1] == pytest.approx(ours[1][1] - ours[2][1], abs=0.11)
    assert ours[2] == theirs[2]


def test_every_curve_and_value_of_x_is_named() -> None:
    svg = draw_curves("a < b", [CurvePanel("first", [16, 2000], [Curve("p99 & more", [1.5, 73])])] * 2)
    texts = [element.text or "" for element in _elements(svg, "text")]
    assert texts.count("p99 & more") == texts.count("first") == texts.count("2,000") == 2
    assert ElementTree.fromstring(svg).attrib["aria-label"] == "a < b"  # noqa: S314 - our own


@pytest.mark.parametrize(("values", "highest"), [([0, 0], 4), ([3, 7], 8), ([100, 41], 200), ([400, 1], 400)])
def test_the_scale_ends_at_a_round_number_above_all_values(values: list[float], highest: float) -> None:
    svg = draw_curves("picture", [CurvePanel("rates", [1, 2], [Curve("ours", values)])])
    ticks = [element.text or "" for element in _elements(svg, "text") if element.attrib.get("text-anchor") == "end"]
    assert ticks[-1] == f"{highest:,g}"
    assert all(34 <= y <= 186 for _, y in _points(svg)[0])
