"""The head report as one HTML page with its plots inside as SVG, from the report's JSON: no script, nothing loaded."""

import base64
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from model.analysis.arrays import Float64Array

STYLE = Path(__file__).parent / "page.css"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

SHOWN: Mapping[str, str] = {
    "normalized_entropy": "1: spread over all tokens that it may see, 0: one token",
    "confidence": "largest weight on an ordinary token",
    "distance": "tokens between query and key",
    "offset_previous": "weight on the token before",
    "offset_self": "weight on the token itself",
    "offset_next": "weight on the token after",
    "special_mass": "weight on special tokens",
    "special_norm_share": "share of the moved values that comes from special tokens",
    "sink": "weight on the first token",
    "punctuation_mass": "weight on punctuation",
    "repeated_token": "weight on other places of the same token",
    "rare_token": "queries that look most at the rarest token",
    "weight_norm_ranks": "agreement of weight and moved values",
    "variability": "0: looks at positions, not at content",
}
DEFINITIONS: Mapping[str, str] = {
    "leave_one_out": "1 - cosine of the embedding without the head",
    "jacobian": "length of d embedding / d gate",
    "output_norm": "length of what the head adds to a token",
    "spearman_loss": "points of Spearman lost without the head",
    "loss_gradient": "|d loss / d gate| on rated pairs",
}
LISTED = ("normalized_entropy", "distance", "offset_previous", "offset_next", "special_mass", "output_norm")


def render_page(report: Mapping[str, Any]) -> str:
    """One HTML document."""
    title = f"Heads of {escape(report['model'])}"
    parts = (_roles, _statistics, _importance, _redundancy, _relations, _all_heads)
    sections = [_head(report, title), *filter(None, (part(report) for part in parts))]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(report: Mapping[str, Any], title: str) -> str:
    corpus = report["corpus"]
    drawn = f"{corpus['texts']:,} texts ({corpus['tokens']:,} tokens) of {corpus['texts_in_file']:,}"
    return (
        f"<h1>{title}</h1>\n<p class=soft>{drawn} in {escape(corpus['name'])}; intervals are 95 %, over texts. "
        "Rest the pointer on a cell for its figures. Attention is not an explanation: it says what a head reads, not "
        "what the model does with it.</p>"
    )


def _roles(report: Mapping[str, Any]) -> str:
    counted = Counter(head["role"] for head in report["heads"])
    legend = "".join(
        f'<span><i class="role-{escape(role)}"></i>{escape(role.replace("_", " "))} {count}</span>'
        for role, count in counted.most_common()
    )
    drawn = head_map(report, "Role of every head", lambda head: f'class="role-{escape(head["role"])}"', _role_title)
    return (
        "<h2>Roles</h2>\n<p>A head has a role where its mean passes a threshold with p below "
        f"{report['significance']} after correction for all heads and rules; most heads need have none.</p>\n"
        f'<p class="legend">{legend}</p>\n{drawn}'
    )


def _statistics(report: Mapping[str, Any]) -> str:
    known = [name for name in SHOWN if any(name in head["statistics"] for head in report["heads"])]
    plots = [_figure(report, "statistics", name, SHOWN[name]) for name in known]
    return f'<h2>What they look at</h2>\n<div class="plots">{"".join(plots)}</div>'


def _importance(report: Mapping[str, Any]) -> str:
    found = report["importance"]
    names = [name for name in DEFINITIONS if any(name in head["importance"] for head in report["heads"])]
    plots = [_figure(report, "importance", name, DEFINITIONS[name]) for name in names]
    rows = [
        (pair["a"], pair["b"], _number(pair["spearman"]), _number(pair["kendall"]), str(pair["heads"]))
        for pair in found["agreement"]
    ]
    table = _table(("definition", "and", "Spearman", "Kendall", "heads"), rows, numbers={2, 3, 4})
    pairs = f" ({found['pairs']['pairs']} rated pairs of {escape(found['pairs']['name'])})" if found["pairs"] else ""
    return (
        f"<h2>How much they matter</h2>\n<p>{found['texts']} texts{pairs}. Definitions of importance need not agree; "
        f'below the plots, how far they order the heads alike.</p>\n<div class="plots">{"".join(plots)}</div>\n{table}'
    )


def _redundancy(report: Mapping[str, Any]) -> str:
    found, heads = report["redundancy"], report["heads"]
    if len(heads) < 2:
        return ""
    values, order = np.array(found["divergences"]), found["leaf_order"]
    names = [f"{head['layer']}.{head['head']}" for head in heads]
    points = [tuple(head["map"]) for head in heads]
    means, untrained = found["means"], found["untrained_means"]
    return (
        "<h2>Which do the same</h2>\n<p>Jensen-Shannon divergence of every two heads, mean over queries, then over "
        f"{found['texts']} texts: {_number(means['same_layer'])} nats between heads of one layer, "
        f"{_number(means['different_layers'])} between layers (untrained network: {_number(untrained['same_layer'])} "
        f"and {_number(untrained['different_layers'])}; at most 0.693).</p>\n"
        f'<div class="plots"><figure>{tree(found["tree"], order, label="Tree of heads by divergence")}'
        f"{matrix(values, order, label='Divergence of every two heads')}<figcaption>Dark: alike. Heads in the order of "
        "the tree (average linkage).</figcaption></figure>"
        f"<figure>{scatter(points, [head['layer'] for head in heads], names, label='Map of heads')}<figcaption>"
        f"Classical scaling, layer.head, deeper layers darker. Stress {_number(found['map_stress'])}: how wrong a "
        "plane has to be.</figcaption></figure></div>"
    )


def _relations(report: Mapping[str, Any]) -> str:
    found = report["relations"]
    if not found:
        return ""
    rows = []
    for row in found["relations"]:
        best = row["best"]
        arrow = "from dependent" if best["direction"] == "dependent_to_head" else "from head word"
        rows.append(
            (
                escape(row["relation"]),
                f"{row['cases']:,}",
                f"{best['layer']}.{best['head']}, {arrow}",
                _percent(best["accuracy"]),
                _percent(row["baseline"]["accuracy"]),
                _percent(row["untrained"]["accuracy"]),
                shares([(kind, row[kind]) for kind in ("best", "baseline", "untrained")]),
                "-" if "p" not in best else _number(best["p"]),
            )
        )
    titles = ("relation", "cases", "best head", "head", "offset", "untrained", "0 to 100 %, intervals", "p")
    return (
        f"<h2>Relations between words</h2>\n<p>{found['sentences']:,} parsed sentences of {escape(found['name'])}. How "
        'often a head points along the arc between a word and its head word: the <span class="best">best head</span>, '
        'the <span class="baseline">best fixed offset</span> for the relation, and the best head of an <span '
        'class="untrained">untrained network</span>. The p of the best head against the offset is adjusted '
        f"for all heads, directions and the {found['tested']} relations tested.</p>\n"
        f'<div class="wide">{_table(titles, rows, numbers={1, 3, 4, 5, 7})}</div>'
    )


def _all_heads(report: Mapping[str, Any]) -> str:
    rows = []
    for head in report["heads"]:
        followed = ", ".join(escape(found["relation"]) for found in head["relations_followed"])
        cells = [_interval(head["statistics"].get(name)) for name in LISTED]
        role = escape(head["role"].replace("_", " "))
        rows.append((f"{head['layer']}.{head['head']}", role, followed or "-", *cells))
    titles = ("head", "role", "follows", *(name.replace("_", " ") for name in LISTED))
    table = _table(titles, rows, numbers=set(range(3, len(titles))))
    return (
        "<h2>Every head</h2>\n<details><summary>Means with their intervals; heads.json has all statistics</summary>"
        f'<div class="wide">{table}</div></details>'
    )


def _figure(report: Mapping[str, Any], kind: str, name: str, caption: str) -> str:
    """A map of a figure; the darkest cell is the largest value, the lightest the smallest, and one without is empty."""
    means = [head[kind].get(name, {}).get("mean") for head in report["heads"]]
    known = [mean for mean in means if mean is not None]
    low, span = (min(known), (max(known) - min(known)) or 1.0) if known else (0.0, 1.0)

    def cell(head: Mapping[str, Any]) -> str:
        mean = head[kind].get(name, {}).get("mean")
        strength = 0.0 if mean is None else 0.06 + 0.94 * (mean - low) / span
        return f'class="heat" fill-opacity="{strength:.2f}"'

    def title(head: Mapping[str, Any]) -> str:
        found = head[kind].get(name)
        return f"{head['layer']}.{head['head']}: {_interval(found)}" + (f", n {found['n']}" if found else "")

    bounds = f"{_number(low)} to {_number(max(known))}" if known else "no value"
    return (
        f"<figure><h3>{escape(name.replace('_', ' '))}</h3>{head_map(report, name, cell, title)}"
        f"<figcaption>{escape(caption)}; {bounds}</figcaption></figure>"
    )


def _role_title(head: Mapping[str, Any]) -> str:
    name = f"{head['layer']}.{head['head']}: {head['role'].replace('_', ' ')}"
    passed = [
        f"{rule['statistic']} {_number(rule['mean'])} above {rule['threshold']}, p {_number(rule['p'])}, n {rule['n']}"
        for rule in head["rules_passed"]
    ]
    followed = [f"{found['relation']} {_percent(found['accuracy'])}" for found in head["relations_followed"]]
    return "; ".join([name, *passed, *followed])


def _table(titles: Iterable[str], rows: Sequence[Sequence[str]], *, numbers: set[int]) -> str:
    def cell(tag: str, index: int, text: str) -> str:
        return f'<{tag} class="number">{text}</{tag}>' if index in numbers else f"<{tag}>{text}</{tag}>"

    head = "".join(cell("th", index, title) for index, title in enumerate(titles))
    body = "".join(f"<tr>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _interval(found: Mapping[str, Any] | None) -> str:
    if not found or found["mean"] is None:
        return "-"
    bounds = "" if found["low"] is None else f" [{_number(found['low'])}, {_number(found['high'])}]"
    return _number(found["mean"]) + bounds


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


CELL = 18  # pixels
LEFT, TOP = 28, 16

OfHead = Callable[[Mapping[str, Any]], str]


def head_map(report: Mapping[str, Any], label: str, cell: OfHead, title: OfHead) -> str:
    """A layer a row, a head a column, with attributes of its cell and what a pointer that rests on it is told."""
    layers, columns = len(report["num_heads"]), max(report["num_heads"], default=0)
    step, size = 1 if columns <= 12 else 2 if columns <= 24 else 4, CELL - 2
    parts = [
        f'<text x="{LEFT + head * CELL + CELL / 2 - 1}" y="{TOP - 5}" text-anchor="middle">{head}</text>'
        for head in range(0, columns, step)
    ]
    parts += [
        f'<text x="{LEFT - 6}" y="{TOP + layer * CELL + 12}" text-anchor="end">{layer}</text>'
        for layer in range(layers)
    ]
    for head in report["heads"]:
        x, y = LEFT + head["head"] * CELL, TOP + head["layer"] * CELL
        place = f'x="{x}" y="{y}" width="{size}" height="{size}"'
        parts.append(f"<rect {cell(head)} {place}><title>{escape(title(head))}</title></rect>")
    width, height = LEFT + columns * CELL, TOP + layers * CELL
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def matrix(values: Float64Array, order: Sequence[int], *, label: str) -> str:
    """Distances of everything from everything as one picture, in the order given; dark is near."""
    ordered = values[np.ix_(order, order)]
    largest = float(ordered.max()) or 1.0
    picture = _png((255 * (1 - ordered / largest)).astype(np.uint8))
    return (
        f'<svg class="matrix" viewBox="0 0 100 100" role="img" aria-label="{escape(label)}"><image class="pixels" '
        f'width="100" height="100" preserveAspectRatio="none" href="data:image/png;base64,{picture}"/></svg>'
    )


def tree(joins: Sequence[Sequence[float]], order: Sequence[int], *, label: str) -> str:
    """A dendrogram over a matrix of the same order: leaves at the bottom, the height of a join is its distance."""
    place = {leaf: (index + 0.5) / len(order) * 100 for index, leaf in enumerate(order)}
    top = max((join[2] for join in joins), default=1.0) or 1.0
    at = {leaf: (x, 0.0) for leaf, x in place.items()}
    lines = []
    for index, (a, b, height, _) in enumerate(joins):
        (xa, ya), (xb, yb), y = at[int(a)], at[int(b)], 30 * height / top
        lines.append(f"M{xa:.2f} {30 - ya:.2f}V{30 - y:.2f}H{xb:.2f}V{30 - yb:.2f}")
        at[len(order) + index] = ((xa + xb) / 2, y)
    path = f'<path d="{"".join(lines)}"/>'
    return f'<svg class="tree" viewBox="0 0 100 31" role="img" aria-label="{escape(label)}">{path}</svg>'


def scatter(points: Sequence[tuple[float, float]], layers: Sequence[int], names: Sequence[str], *, label: str) -> str:
    """Points with their names; the deeper the layer, the darker."""
    coordinates = np.array(points).reshape(-1, 2)
    low, span = coordinates.min(axis=0), float(np.ptp(coordinates, axis=0).max()) or 1.0
    deepest = max(layers, default=0) or 1
    marks = []
    for (x, y), layer, name in zip((coordinates - low) / span * 380 + 20, layers, names, strict=True):
        strength = 0.25 + 0.75 * layer / deepest
        marks.append(
            f'<circle class="heat" cx="{x:.1f}" cy="{y:.1f}" r="5" fill-opacity="{strength:.2f}"><title>{escape(name)}'
            f'</title></circle><text class="mark" x="{x + 7:.1f}" y="{y + 3:.1f}">{escape(name)}</text>'
        )
    height = float(np.ptp(coordinates[:, 1])) / span * 380 + 40
    return (
        f'<svg class="map" viewBox="0 0 440 {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"{''.join(marks)}</svg>"
    )


def shares(rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Shares with their intervals under one another, each row a class of the page's style, on a line from 0 to 1."""
    marks = ['<line class="axis" x1="0" x2="200" y1="15" y2="15"/>']
    for index, (kind, share) in enumerate(rows):
        y = 5 + 9 * index
        low, middle, high = (200 * share[name] for name in ("low", "accuracy", "high"))
        marks.append(
            f'<g class="{escape(kind)}"><line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>'
            f'<circle cx="{middle:.1f}" cy="{y}" r="3.5"/></g>'
        )
    return f'<svg class="shares" viewBox="-4 0 208 28" aria-hidden="true">{"".join(marks)}</svg>'


def _png(strength: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> str:
    """One colour with [H, W] as its opacity, as a PNG (ISO 15948: grey with alpha, no filter), in base64."""
    height, width = strength.shape
    grey = np.full_like(strength, 0x70)
    rows = np.stack([grey, strength], axis=-1).reshape(height, 2 * width)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 4, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()
