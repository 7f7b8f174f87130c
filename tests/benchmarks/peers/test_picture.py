from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from benchmarks.lib.report import Table
from benchmarks.peers.bars import Bar, Panel, draw_bars
from benchmarks.peers.picture import draw_peers

RATES = {
    "all-MiniLM int8, one text a run, 2x1": 300.0,
    "all-MiniLM int8, sorted, 2x1": 400.0,
    "OpenVINO f32 1x2": 100.0,
    "Polyhead int8, HTTP, 1 text a request": 250.0,
    "Polyhead int8, HTTP, 32 texts a request": 350.0,
    "Infinity --on, HTTP, 1 text a request": 50.0,
    "Infinity --on, HTTP, 32 texts a request": 60.0,
}


def _elements(svg: str, tag: str) -> list[Element]:
    return list(ElementTree.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}"))  # noqa: S314 - our own


def _texts(svg: str) -> list[str]:
    return [element.text or "" for element in _elements(svg, "text")]


def _widths(svg: str) -> list[float]:
    return [float(element.attrib["width"]) for element in _elements(svg, "rect")]


def test_bars_are_as_long_as_their_values_longest_first() -> None:
    svg = draw_bars("rates", [Panel("A <panel>", [Bar("theirs & others'", 50, False), Bar("ours", 200, True)])])
    assert _texts(svg) == ["A <panel>", "ours", "200", "theirs & others'", "50"]
    longest, other = _widths(svg)
    assert longest / other == 4
    assert [element.attrib["class"] for element in _elements(svg, "rect")] == ["ours", "theirs"]


def test_panels_have_scales_of_their_own_and_empty_ones_are_left_out() -> None:
    panels = [Panel("a", [Bar("x", 10, True)]), Panel("none", []), Panel("b", [Bar("y", 1000, True)])]
    svg = draw_bars("rates", panels)
    assert _texts(svg) == ["a", "x", "10", "b", "y", "1,000"]
    first, second = _widths(svg)
    assert first == second


def test_peers_are_drawn_at_their_best_and_left_out_where_not_measured() -> None:
    table = Table("rates", "", ("way", "tokens_per_s"))
    for way, rate in RATES.items():
        table.add(way=way, tokens_per_s=rate)
    svg = draw_peers(
        table,
        {"Polyhead int8": "all-MiniLM int8"},
        {"OpenVINO f32": ("OpenVINO f32",), "not installed": ("not installed",)},
        ["Infinity --on", "Infinity --off"],
        [1, 32],
    )
    assert _texts(svg) == [
        *("Tokens a second, without HTTP", "Polyhead int8", "400", "OpenVINO f32", "100"),
        *("Tokens a second, HTTP, 1 text a request", "Polyhead int8", "250", "Infinity --on", "50"),
        *("Tokens a second, HTTP, 32 texts a request", "Polyhead int8", "350", "Infinity --on", "60"),
    ]
