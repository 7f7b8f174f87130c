"""Plots as inline SVG. Colours are the page's variables, strength is opacity: one drawing serves light and dark."""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from model.analysis.arrays import Float64Array

CELL = 18  # pixels
LEFT, TOP = 28, 16

Grid = Sequence[Sequence[float | None]]


def heat_map(grid: Grid, titles: Sequence[Sequence[str]], *, label: str) -> str:
    """A layer a row, a head a column; the darkest cell is the largest value, the lightest the smallest.

    Args:
        grid: values, ragged where layers differ in heads; None is left empty.
        titles: what a pointer that rests on a cell is told.
        label: what it shows, for those who do not see it.
    """
    known = [value for row in grid for value in row if value is not None]
    low, span = (min(known), (max(known) - min(known)) or 1.0) if known else (0.0, 1.0)
    cells = []
    for layer, (row, told) in enumerate(zip(grid, titles, strict=True)):
        for head, (value, title) in enumerate(zip(row, told, strict=True)):
            strength = 0.0 if value is None else 0.06 + 0.94 * (value - low) / span
            cells.append(_cell(head, layer, f'class="heat" fill-opacity="{strength:.2f}"', title))
    return _axes(grid, "".join(cells), label)


def class_map(grid: Sequence[Sequence[str]], titles: Sequence[Sequence[str]], *, label: str) -> str:
    """The same for names instead of numbers: each cell gets the class `role-NAME` of the page's style."""
    cells = [
        _cell(head, layer, f'class="role-{escape(name)}"', title)
        for layer, (row, told) in enumerate(zip(grid, titles, strict=True))
        for head, (name, title) in enumerate(zip(row, told, strict=True))
    ]
    return _axes(grid, "".join(cells), label)


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


def _cell(column: int, row: int, attributes: str, title: str) -> str:
    x, y = LEFT + column * CELL, TOP + row * CELL
    size = CELL - 2
    return f'<rect {attributes} x="{x}" y="{y}" width="{size}" height="{size}"><title>{escape(title)}</title></rect>'


def _axes(grid: Sequence[Sequence[object]], cells: str, label: str) -> str:
    columns = max(map(len, grid), default=0)
    step = 1 if columns <= 12 else 2 if columns <= 24 else 4
    names = [
        f'<text x="{LEFT + head * CELL + CELL / 2 - 1}" y="{TOP - 5}" text-anchor="middle">{head}</text>'
        for head in range(0, columns, step)
    ]
    names += [
        f'<text x="{LEFT - 6}" y="{TOP + layer * CELL + 12}" text-anchor="end">{layer}</text>'
        for layer in range(len(grid))
    ]
    width, height = LEFT + columns * CELL, TOP + len(grid) * CELL
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(names)}{cells}</svg>'
    )


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
