"""This project's own networks: config.json is an `EncoderConfig`, the tensors are the encoder's state.

For whoever trains an `Encoder` in another shape than a published family's: heads that differ from layer to layer, d_k
apart from d_v, a value stream. `model_type` is `polyhead`; everything else has the names of `model.config`, as
`EncoderConfig.to_dict` gives them.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from model.config import EncoderConfig, Pooling, Projection

MODEL_TYPES = ("polyhead",)


def read_config(config: Mapping[str, Any], pooling: Pooling, projection: Projection | None) -> EncoderConfig:
    """Reads the configuration; the pooling and projection it names come before those of modules.json.

    Raises:
        ConfigError: it describes no network.
    """
    around = {"pooling": pooling, "projection": None if projection is None else asdict(projection)}
    return EncoderConfig.from_dict(
        {**around, **{name: value for name, value in config.items() if name != "model_type"}}
    )


def read_state(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors as they are."""
    del config  # the names are the encoder's own
    return dict(tensors)
