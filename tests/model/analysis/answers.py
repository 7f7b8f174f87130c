"""Attention items as `POST /encode` answers with, made from maps."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from model.analysis.arrays import Float32Array


def answer(
    tokens: Sequence[str], maps: Sequence[Float32Array], *, layers: list[int], heads: list[list[int]], packed: str = ""
) -> dict[str, Any]:
    """What a client reads: [H, n, n] of each layer through JSON, or as base64 of the dtype `packed`."""
    item = {
        "tokens": list(tokens),
        "offsets": [[place, place + 1] for place in range(len(tokens))],
        "layers": layers,
        "heads": heads,
        "weights": [as_base64(layer, packed) if packed else np.ascontiguousarray(layer) for layer in maps],
    }
    read: dict[str, Any] = orjson.loads(orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY))
    return read


def whole_answer(tokens: Sequence[str], maps: Sequence[Float32Array], packed: str = "") -> dict[str, Any]:
    """Of every layer and head."""
    heads = [list(range(len(layer))) for layer in maps]
    return answer(tokens, maps, layers=list(range(len(maps))), heads=heads, packed=packed)


def as_base64(array: Float32Array, dtype: str) -> dict[str, Any]:
    """As the service sends arrays with `encoding_format: "base64"`."""
    data = base64.b64encode(array.astype(dtype).tobytes()).decode()
    return {"dtype": dtype, "shape": list(array.shape), "data": data}
