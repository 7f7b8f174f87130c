"""This project's own networks: config.json is an `EncoderConfig`, the tensors are the encoder's state.

For whoever trains an `Encoder` in another shape than a published family's: heads that differ from layer to layer, d_k
apart from d_v, a value stream. `model_type` is `polyhead`; everything else has the names of `model.config`, as
`EncoderConfig.to_dict` gives them.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from export.families.naming import share_layers
from model.config import EncoderConfig, Pooling

MODEL_TYPES = ("polyhead",)
OLDER = re.compile(r"^(task_layers\.)?projection\.")


def read_config(config: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """Reads the configuration; the pooling it names comes before that of modules.json.

    Raises:
        ConfigError: it describes no network.
    """
    named = {name: value for name, value in config.items() if name != "model_type"}
    return EncoderConfig.from_dict({"pooling": pooling, **named})


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors as they are; a projection may have its name of before there were several, or before tasks."""
    state = {OLDER.sub("task_layers.projections.0.", name): tensor for name, tensor in tensors.items()}
    return share_layers(state, config.get("shared_layers", ()))
