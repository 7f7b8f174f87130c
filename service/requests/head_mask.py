"""Head masks of requests: `[[layer, head, gate], ...]` as gates on every head of the model.

Any route that runs the model may take one: `HeadMask` is the field's type, `read_head_mask` what to make of it.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import WithJsonSchema

from model.graph_names import HEAD_GATES
from model.manifest import Manifest
from service.errors import Invalid
from service.inference.backend import Float32Array
from service.requests.artifact_inputs import require_input

PARAM = "head_mask"
EXPECTED = "expected a list of [layer, head, gate]"

HeadMask = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {
                        "type": "array",
                        "prefixItems": [
                            {"type": "integer"},
                            {"type": "integer"},
                            {"type": "number", "minimum": 0, "maximum": 1},
                        ],
                        "minItems": 3,
                        "maxItems": 3,
                    },
                },
                {"type": "null"},
            ]
        }
    ),
]


def read_head_mask(value: Any, manifest: Manifest, *, param: str = PARAM) -> Float32Array | None:
    """The gates of every head, [sum of all layers' heads], first layer first; None for no mask.

    Args:
        value: the request's field, any JSON value; null and an empty list are no mask.
        manifest: of the artifact that would run it.
        param: name of the field.

    Raises:
        Invalid: another form, a layer or head that the model does not have, a gate outside [0, 1], a head named twice,
            or an artifact that takes no gates.
    """
    if value is None or value == []:
        return None
    config = manifest.config
    gates = np.ones(sum(config.num_heads), dtype=np.float32)
    if type(value) is not list or len(value) > len(gates):
        raise Invalid(f"{param}: {EXPECTED}, at most {len(gates)}, the model's heads", param=param)
    require_input(manifest, HEAD_GATES, param=param)
    named: set[int] = set()
    for index, entry in enumerate(value):
        layer, head, gate = _read_entry(entry, config.num_heads, param, index)
        place = config.head_span(layer).start + head
        if place in named:
            raise _invalid(param, index, f"layer {layer}, head {head} is named twice")
        named.add(place)
        gates[place] = gate
    return gates


def _read_entry(entry: Any, num_heads: Sequence[int], param: str, index: int) -> tuple[int, int, float]:
    """Layer and head counted from 0, and the gate."""
    if type(entry) is not list or [type(part) for part in entry[:2]] != [int, int] or len(entry) != 3:
        raise _invalid(param, index, "expected [layer, head, gate], layer and head whole numbers")
    layer, head, gate = entry
    if type(gate) not in (int, float) or not 0 <= gate <= 1:
        raise _invalid(param, index, "the gate is no number from 0 (head removed) to 1 (head as it is)")
    layers = len(num_heads)
    if not -layers <= layer < layers:
        raise _invalid(param, index, f"the model has {layers} layers, valid indices are {-layers} to {layers - 1}")
    layer %= layers
    count = num_heads[layer]
    if not -count <= head < count:
        has = f"has {count} heads, valid indices are {-count} to {count - 1}" if count else "has no heads"
        raise _invalid(param, index, f"layer {layer} {has}")
    return layer, head % count, float(gate)


def _invalid(param: str, index: int, what: str) -> Invalid:
    return Invalid(f"{param}[{index}]: {what}", param=f"{param}.{index}")
