"""The rates that `benchmarks.peers.encode` measured as a picture: everyone's best, without HTTP and over it."""

from collections.abc import Mapping, Sequence

from benchmarks.lib.comparison import Words, best_of, http_name
from benchmarks.lib.report import Table
from benchmarks.peers.bars import Bar, Panel, draw_bars


def draw_peers(
    table: Table,
    ours: Mapping[str, str],
    engines: Mapping[str, Words],
    servers: Sequence[str],
    texts_per_request: Sequence[int],
) -> str:
    """One SVG document; who was not measured is left out.

    Args:
        table: of `benchmarks.lib.comparison.compare`.
        ours: what this project's artifacts are called over HTTP, and what their engines are called.
        engines: peers without HTTP by label, each with the words that all its ways hold.
        servers: peers over HTTP.
        texts_per_request: those of the ways over HTTP.
    """
    alone = {label: (engine,) for label, engine in ours.items()} | dict(engines)
    panels = [_panel("Tokens a second, without HTTP", alone, ours, table)]
    for count in texts_per_request:
        way = http_name(count)
        panels.append(_panel(f"Tokens a second, {way}", {name: (name, way) for name in (*ours, *servers)}, ours, table))
    return draw_bars("Rates of this project and of its peers", panels)


def _panel(title: str, groups: Mapping[str, Words], ours: Mapping[str, str], table: Table) -> Panel:
    best = {label: best_of(table, words) for label, words in groups.items()}
    return Panel(title, [Bar(label, rate[1], is_ours=label in ours) for label, rate in best.items() if rate])
