"""What the two texts of a pair look at in each other: blocks of an attention map, and how much weight they hold."""

from typing import Any

import numpy as np

from model.analysis.arrays import Float32Array

QUERY, DOCUMENT = 0, 1


def add_blocks(entries: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Entries of pairs with the blocks of their maps beside these.

    `query_to_document` [layer][head][query's token][document's token] and `document_to_query` are parts of `weights`.
    `query_to_document_mass` [layer][head] is the mean over the query's tokens of what each gives to the document;
    likewise the other way round. Entries without whole maps (one row, the largest keys, statistics) stay as they are.
    """
    return entries if entries is None else [{**entry, **_blocks(entry)} for entry in entries]


def _blocks(entry: dict[str, Any]) -> dict[str, Any]:
    if "segments" not in entry or "indices" in entry:
        return {}
    segments = np.array([-1 if segment is None else segment for segment in entry["segments"]])
    maps: list[Float32Array] = entry["weights"]
    if any(layer.shape[1] != len(segments) for layer in maps):  # the first row only
        return {}
    query, document = (np.flatnonzero(segments == text) for text in (QUERY, DOCUMENT))
    found: dict[str, Any] = {}
    for name, rows, columns in (("query_to_document", query, document), ("document_to_query", document, query)):
        blocks = [np.ascontiguousarray(layer[:, rows[:, np.newaxis], columns]) for layer in maps]
        found[name] = blocks
        found[f"{name}_mass"] = [_mass(block) for block in blocks]
    return found


def _mass(block: Float32Array) -> Float32Array:
    """[heads, rows, columns] -> [heads]: what a row gives to all columns, the mean over rows; 0 where there is none."""
    if not block.shape[1]:
        return np.zeros(len(block), dtype=np.float32)
    return np.asarray(block.sum(axis=2).mean(axis=1), dtype=np.float32)
