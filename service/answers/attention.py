"""The attention part of an answer, one entry an input; and its maps as a picture for notebooks."""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypeVar
from unicodedata import east_asian_width

import numpy as np
from numpy.typing import NDArray

from model.analysis.arrays import Float64Array
from model.analysis.contributions import norm_weighted
from model.analysis.reductions import max_over_heads, mean_over_heads, rollout, top_k
from model.analysis.statistics import STATISTICS, head_statistics
from model.analysis.words import Span, exclude_special, punctuation_mask, to_words
from service.answers.vectors import SMALLEST_LENGTH
from service.batching.jobs import JobResult
from service.errors import InferenceFailed
from service.inference.backend import Float32Array, Int64Array, TokenParts
from service.requests.attention import AttentionSelection, Axes, label_axes, plan_axes
from service.requests.plan import EncodePlan
from service.requests.schemas import AttentionRequest
from service.tokenization.rows import TokenizedInput, text_offsets
from service.tokenization.tokenizer import Tokenizer

ARRAYS = ("indices", "weights", "left_out")
"""Fields of an entry that hold one array a layer."""

ROUNDING = 1e-6  # of the longest part: a shorter one, as of a network without biases, is rounding and points nowhere

Attentions = Mapping[int, Float32Array]

Number = TypeVar("Number", np.float32, np.float64)


def build_attention(
    selection: AttentionSelection,
    inputs: Sequence[Axes],
    tokenized: Sequence[TokenizedInput],
    results: Sequence[JobResult],
    tokenizer: Tokenizer,
) -> list[dict[str, Any]]:
    """One entry an input."""
    options, entries = selection.options, []
    for axes, item, result in zip(inputs, tokenized, results, strict=True):
        tokens = tokenizer.tokens(item)
        # Lists of its own for each entry, since they are emptied as they are written.
        sources = {"layers": list(selection.layers), "heads": selection.heads_by_layer}
        if options.form == "stats":
            pieces = written_pieces(item, tokens, tokenizer)
            found = make_statistics(result.attentions, selection, axes, input_ids=item.input_ids, pieces=pieces)
            entries.append({**sources, "statistics": found})
            continue
        entry = {**label_axes(options, axes, item, tokens), **sources}
        if options.reduce != "none":
            entry["reduce"] = options.reduce
        if options.form == "norms":
            entry["form"] = options.form
        entries.append(entry | make_maps(result.attentions, selection, axes, result.value_norms))
    return entries


def make_maps(
    attentions: Attentions, selection: AttentionSelection, axes: Axes, value_norms: Attentions
) -> dict[str, list[NDArray[Any]]]:
    """The maps of each layer, C-contiguous; a rollout's is one for all layers.

    Attentions are [H_l, n, n] by layer, of at least `selection.layers`; value norms [H_l, n], what weights are
    multiplied by for form "norms".

    Returns:
        `weights` [maps, queries, keys] of each layer; with `top_k` [maps, queries, k], and with them `indices`
        [maps, queries, k] and `left_out` [maps, queries].
    """
    options = selection.options
    if options.reduce == "rollout":
        layers = [_between_axes(_rollout(attentions, selection, axes), selection, axes)]
    else:
        heads = (_heads(attentions[layer], selection, axes.rows) for layer in selection.layers)
        if options.form == "norms":
            chosen = slice(None) if selection.heads is None else list(selection.heads)
            norms = (value_norms[layer][chosen] for layer in selection.layers)
            heads = (norm_weighted(*pair) for pair in zip(heads, norms, strict=True))
        layers = [_layer(maps, selection, axes) for maps in heads]
    if options.top_k is None:
        return {"weights": [np.ascontiguousarray(maps) for maps in layers]}
    largest = [top_k(maps, options.top_k) for maps in layers]
    return {name: [np.ascontiguousarray(getattr(layer, name)) for layer in largest] for name in ARRAYS}


def written_pieces(item: TokenizedInput, tokens: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """What each token stands for: a byte-level vocabulary writes a quotation mark as three letters, or in parts."""
    text = item.text
    if text is None:
        return [tokenizer.join([token]).strip() for token in tokens]
    return [text[start:end].strip() for start, end in text_offsets(item)]


def make_statistics(
    attentions: Attentions, selection: AttentionSelection, axes: Axes, *, input_ids: Int64Array, pieces: list[str]
) -> dict[str, list[Float32Array] | None]:
    """Each of `STATISTICS`: [heads] of each layer, or None where this input does not define it."""
    punctuation = punctuation_mask(pieces, axes.special)
    layers = [
        head_statistics(
            _heads(attentions[layer], selection, axes.num_tokens),
            token_ids=input_ids,
            special=axes.special,
            punctuation=punctuation,
            causal=selection.causal,
            reach=reach,
        )
        for layer, reach in zip(selection.layers, selection.reaches, strict=True)
    ]
    found = {name: [values for layer in layers if (values := layer[name]) is not None] for name in STATISTICS}
    return {name: values or None for name, values in found.items()}  # what is not defined is so for no layer


def _heads(weights: Float32Array, selection: AttentionSelection, rows: int) -> Float32Array:
    """The heads asked for and their first rows, [heads, rows, n]; a view where nothing is left out."""
    heads = slice(None) if selection.heads is None else list(selection.heads)
    selected: Float32Array = weights[heads, :rows]
    return selected


def _layer(heads: Float32Array, selection: AttentionSelection, axes: Axes) -> Float32Array:
    """A layer's maps, [maps, queries, keys], from its heads' [heads, rows, n]; without heads none, reduced or not."""
    maps = _between_axes(heads, selection, axes)
    if not len(maps) or selection.options.reduce == "none":
        return maps
    reduced = mean_over_heads(maps) if selection.options.reduce == "mean" else max_over_heads(maps)
    return reduced[np.newaxis]


def _rollout(attentions: Attentions, selection: AttentionSelection, axes: Axes) -> Float32Array:
    """[1, rows, n]. Only whole maps of every layer can be followed from one to the next, special tokens included."""
    whole = [_heads(attentions[layer], selection, axes.num_tokens) for layer in selection.layers]
    start = None if selection.options.queries == "all" else np.eye(axes.rows, axes.num_tokens)
    return rollout(open_maps(whole, selection.rollout_gates), start)[np.newaxis]


def open_maps(maps: Sequence[Float32Array], gates: Float32Array | None) -> list[Float32Array]:
    """Each layer's maps [H_l, n, n] without heads that are switched off: nothing passes through them."""
    if gates is None:
        return list(maps)
    ends = np.cumsum([len(of_layer) for of_layer in maps])[:-1]
    return [of_layer[own > 0] for of_layer, own in zip(maps, np.split(gates, ends), strict=True)]


def _between_axes(maps: Float32Array, selection: AttentionSelection, axes: Axes) -> Float32Array:
    """[maps, rows, n] as [maps, queries, keys]: without special tokens, by words. A row asked for by name is kept."""
    options = selection.options
    picked = options.queries == "cls"
    if options.exclude_special:
        queries = np.zeros(axes.rows, dtype=np.bool_) if picked else None
        maps = exclude_special(maps, axes.special, queries=queries, renormalise=options.renormalise)
    if axes.words is None:
        return maps
    if not axes.keys:
        return np.zeros((len(maps), axes.queries, 0), dtype=np.float32)
    # The same words without the tokens that were dropped between them.
    lengths = [end - start for start, end in axes.words]
    words = [(end - length, end) for end, length in zip(np.cumsum(lengths).tolist(), lengths, strict=True)]
    return to_words(maps, words, [(0, axes.rows)] if picked else None)


def add_blocks(entries: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Entries of pairs with the blocks of their maps added, as `PairAttention` describes them.

    Entries without whole maps (one row, the largest keys, statistics) stay as they are.
    """
    return entries if entries is None else [{**entry, **_blocks(entry)} for entry in entries]


def _blocks(entry: dict[str, Any]) -> dict[str, Any]:
    if "segments" not in entry or "indices" in entry:
        return {}
    segments = np.array([-1 if segment is None else segment for segment in entry["segments"]])
    maps: list[Float32Array] = entry["weights"]
    if any(layer.shape[1] != len(segments) for layer in maps):  # the first row only
        return {}
    query, document = (np.flatnonzero(segments == text) for text in (0, 1))
    found: dict[str, Any] = {}
    for name, rows, columns in (("query_to_document", query, document), ("document_to_query", document, query)):
        blocks = [np.ascontiguousarray(layer[:, rows[:, np.newaxis], columns]) for layer in maps]
        sums = [block.sum(axis=(1, 2)) for block in blocks]  # [heads]: of a text without tokens 0
        found |= {name: blocks, f"{name}_mass": [total / np.float32(max(1, len(rows))) for total in sums]}
    return found


def sum_words(cells: NDArray[Number], words: Sequence[Span] | None, axis: int) -> NDArray[Number]:
    """Contributions of tokens along an axis, added up by word; the biases' entry behind the words' tokens stays.

    Words are spans of the tokens, one after the other from 0 on; None leaves the tokens.
    """
    if words is None:
        return cells
    starts = [start for start, _ in words] + list(range(words[-1][1], cells.shape[axis]))
    return np.add.reduceat(cells, starts, axis=axis, dtype=np.float64).astype(cells.dtype)


def with_biases(found: TokenParts) -> Float64Array:
    """A text's parts [n + 1, D'] in float64, the last one the biases', so that they add up to the output as it is."""
    if not (np.isfinite(found.parts).all() and np.isfinite(found.whole).all()):
        raise InferenceFailed()
    parts = found.parts.astype(np.float64)
    return np.concatenate([parts, found.whole[np.newaxis] - parts.sum(axis=0, keepdims=True)])


def build_contributions(
    plan: EncodePlan, tokenized: Sequence[TokenizedInput], parts: Sequence[TokenParts], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """One entry an input; InferenceFailed if a part is not finite."""
    options, entries = plan.request.attention or AttentionRequest(), []
    for axes, item, found in zip(plan_axes(options, tokenized, tokenizer), tokenized, parts, strict=True):
        rows = sum_words(with_biases(found)[:, : plan.request.dimensions], axes.words, 0)
        whole, norms = rows.sum(axis=0), np.linalg.norm(rows, axis=1)
        length = max(float(np.linalg.norm(whole)), SMALLEST_LENGTH)
        has_direction = norms > ROUNDING * norms.max()
        cosines = np.where(has_direction, rows @ whole / (np.maximum(norms, SMALLEST_LENGTH) * length), 0.0)
        figures = {"norms": norms / length if plan.normalize else norms, "cosines": cosines}
        labels = label_axes(options, axes, item, tokenizer.tokens(item))
        entries.append({**labels, "form": options.form} | {name: of.astype(np.float32) for name, of in figures.items()})
    return entries


CELL, SMALL, LETTER = 16, 56, 6.6  # pixels: of a cell of the large map, of a small map, of a letter
MOST_MAPS = 144  # small ones
MOST_LABELS = 80  # tokens; more would not be read
BLUE, RED = np.array([31, 80, 160]), np.array([176, 40, 40])


def attention_picture(entry: Mapping[str, Any]) -> str | None:
    """The first head of an entry of `attention` with its tokens, and all its heads small; None if it has no maps."""
    if "weights" not in entry or "indices" in entry:
        return None
    labels = entry["words"] if "words" in entry else entry["tokens"]
    titled = [
        (_title(entry, layer, place), weights)
        for layer, maps in enumerate(entry["weights"])
        for place, weights in enumerate(maps)
    ]
    if not titled or not titled[0][1].size:
        return None
    rows = labels if len(titled[0][1]) == len(labels) else ["first"]  # which the labels may lack, being special
    return picture(titled, rows, labels)


def picture(titled: Sequence[tuple[str, NDArray[Any]]], rows: Sequence[str], columns: Sequence[str]) -> str:
    """An SVG of the first of some maps, large and with the names of its rows and columns, and of all of them, small.

    Each map [rows, columns] has a name; it is blue above 0 and red below. Nothing is loaded from elsewhere.
    """
    name, values = titled[0]
    longest = [max(map(_width, labels[:MOST_LABELS]), default=0.0) for labels in (rows, columns)]
    left, top = 10 + longest[0], 30 + longest[1]
    width, height = max(left + CELL * len(columns), _width(name)) + 8, top + CELL * len(rows) + 8
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
    if len(titled) > MOST_MAPS:
        parts.append(f'<text x="0" y="{height + 11}">the first {MOST_MAPS} of {len(titled)}</text>')
        height += 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(name)}" font-family="monospace" font-size="11" style="background:#fff">'
        f"{''.join(parts)}</svg>"
    )


def _width(label: str) -> float:
    """Pixels of a text in a font of one width, in which letters of Chinese, Japanese and Korean take two places."""
    return LETTER * sum(2 if east_asian_width(letter) in {"W", "F"} else 1 for letter in label)


def _title(entry: Mapping[str, Any], layer: int, place: int) -> str:
    what, reduce = "Norms" if entry.get("form") == "norms" else "Attention", entry.get("reduce")
    if reduce == "rollout":
        return "Attention rollout through all layers"
    name = f"{what} of layer {entry['layers'][layer]}"
    return f"{name}, {reduce} of heads" if reduce else f"{name}, head {entry['heads'][layer][place]}"


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
