"""Maps of numbers as one picture in SVG, for notebooks: it names its tokens and loads nothing."""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

CELL, SMALL, LETTER = 16, 56, 6.6  # pixels: of a cell of the large map, of a small map, of a letter
MOST_MAPS = 144  # small ones
MOST_LABELS = 80  # tokens; more would not be read
BLUE, RED = np.array([31, 80, 160]), np.array([176, 40, 40])


def attention_picture(entry: Mapping[str, Any]) -> str | None:
    """The first head of an entry of `attention` with its tokens, and all its heads small; None if it has no maps."""
    if "weights" not in entry or "indices" in entry:
        return None
    labels = entry.get("words") or entry["tokens"]
    titled = [
        (_title(entry, layer, place if len(maps) > 1 or "reduce" not in entry else None), weights)
        for layer, maps in enumerate(entry["weights"])
        for place, weights in enumerate(maps)
    ]
    if not titled or not titled[0][1].size:
        return None
    rows = labels if len(titled[0][1]) == len(labels) else labels[: len(titled[0][1])]
    return picture(titled, rows, labels)


def picture(titled: Sequence[tuple[str, NDArray[Any]]], rows: Sequence[str], columns: Sequence[str]) -> str:
    """The first of some maps large, with the names of its rows and columns, and all of them small if there are several.

    Args:
        titled: each map [rows, columns] with its name; blue above 0 and red below.
        rows: names.
        columns: names.
    """
    name, values = titled[0]
    left, top = _width(rows), 20 + _width(columns)
    width, height = left + CELL * len(columns) + 8, top + CELL * len(rows) + 8
    parts = [f'<text x="0" y="13" font-weight="bold">{escape(name)}</text>']
    parts.append(_image(values, (left, top), (CELL * values.shape[1], CELL * values.shape[0]), name))
    for place, label in enumerate(rows[:MOST_LABELS]):
        parts.append(f'<text x="{left - 4}" y="{top + CELL * place + 12}" text-anchor="end">{escape(label)}</text>')
    for place, label in enumerate(columns[:MOST_LABELS]):
        at = f"{left + CELL * place + 12} {top - 4}"
        parts.append(f'<text transform="translate({at}) rotate(-90)">{escape(label)}</text>')
    if len(titled) > 1:
        across = max(4, min(12, int(max(width, 12 * (SMALL + 6)) // (SMALL + 6))))
        for place, (title, small) in enumerate(titled[:MOST_MAPS]):
            row, column = divmod(place, across)
            parts.append(_image(small, (column * (SMALL + 6), height + row * (SMALL + 6)), (SMALL, SMALL), title))
        width, height = max(width, across * (SMALL + 6)), height + (SMALL + 6) * (1 + place // across)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(name)}" font-family="monospace" font-size="11" style="background:#fff">'
        f"{''.join(parts)}</svg>"
    )


def _title(entry: Mapping[str, Any], layer: int, place: int | None) -> str:
    what = "Norms" if entry.get("form") == "norms" else "Attention"
    if entry.get("reduce") == "rollout":
        return "Attention rollout through all layers"
    name = f"{what} of layer {entry['layers'][layer]}"
    return f"{name}, {entry['reduce']} of heads" if place is None else f"{name}, head {entry['heads'][layer][place]}"


def _width(labels: Sequence[str]) -> float:
    return 10 + LETTER * max((len(label) for label in labels[:MOST_LABELS]), default=0)


def _image(values: NDArray[Any], at: tuple[float, float], size: tuple[float, float], title: str) -> str:
    most = float(np.abs(values).max(initial=0)) or 1.0
    share = np.clip(np.abs(np.nan_to_num(values)) / most, 0, 1)[..., np.newaxis]
    inked = np.where(values[..., np.newaxis] < 0, RED, BLUE)
    colours = np.round(255 + share * (inked - 255)).astype(np.uint8)
    return (
        f'<image x="{at[0]:g}" y="{at[1]:g}" width="{size[0]:g}" height="{size[1]:g}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{base64.b64encode(_png(colours)).decode()}">'
        f"<title>{escape(title)}; darkest: {most:.4g}</title></image>"
    )


def _png(colours: NDArray[np.uint8]) -> bytes:
    """[rows, columns, 3] as a PNG: https://www.w3.org/TR/png-3/."""
    rows, columns, _ = colours.shape
    filtered = np.concatenate([np.zeros((rows, 1), np.uint8), colours.reshape(rows, -1)], axis=1)  # filter 0 a row
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes())), (b"IEND", b""))
    written = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)
