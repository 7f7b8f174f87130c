"""This project's own networks: config.json is an `EncoderConfig`, the tensors are the encoder's state.

For whoever trains an `Encoder` in another shape than a published family's: heads that differ from layer to layer, d_k
apart from d_v, a value stream. `model_type` is `polyhead`; everything else has the names of `model.config`, as
`EncoderConfig.to_dict` gives them.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from export.families.family import Family, share_layers
from model.config import EncoderConfig, Pooling

BESIDE = ("model_type", "removed", "examples")  # keys of config.json that are no field of `EncoderConfig`
OLDER = re.compile(r"^(task_layers\.)?projection\.")  # its name before there were several, or before tasks


def _read_polyhead_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    named = {name: value for name, value in config.items() if name not in BESIDE}
    return EncoderConfig.from_dict({"pooling": pooling, **named})


def _rename_older(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    named = {OLDER.sub("task_layers.projections.0.", name): tensor for name, tensor in tensors.items()}
    if config.get("task") != "multi_vector":
        return named
    return {name.replace("task_layers.dense.", "task_layers.layers.0.linear."): named[name] for name in named}


POLYHEAD = Family(
    model_types=("polyhead",),
    settings={},  # `EncoderConfig` knows its fields
    read_config=_read_polyhead_config,
    names=None,
    prepare=_rename_older,
    finish=lambda state, config: share_layers(state, config.get("shared_layers", ())),
)
