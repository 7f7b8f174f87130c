"""One vector a text: reads the projections behind pooling, and judges by the cosine."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from export.similarity import row_cosines
from export.tasks.definition import Rows, TaskExport, Threshold
from export.tasks.source import TaskSource
from model.config import EncoderConfig
from model.config_parts import Projection


def read(source: TaskSource, config: EncoderConfig) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network with its dense layers after pooling."""
    layers = source.pipeline.dense
    projections = tuple(Projection(size=dense.size, bias=dense.bias, activation=dense.activation) for dense in layers)
    state = {
        f"task_layers.projections.{index}.{name}": tensor
        for index, dense in enumerate(layers)
        for name, tensor in dense.state.items()
    }
    return replace(config, projections=projections), state


def measure(found: Rows, expected: Rows) -> dict[str, float]:
    """Cosines of the texts' vectors to those of float32, on average and at worst."""
    cosines = row_cosines(np.stack(found), np.stack(expected))
    return {"cosine_mean": float(cosines.mean()), "cosine_worst": float(cosines.min())}


EMBEDDING = TaskExport(
    read=read,
    measure=measure,
    thresholds={
        "fp16": (Threshold("cosine_mean", least=0.9995), Threshold("cosine_worst", least=0.9995)),
        "bf16": (Threshold("cosine_mean", least=0.998), Threshold("cosine_worst", least=0.99)),
        "int8": (Threshold("cosine_mean", least=0.998), Threshold("cosine_worst", least=0.99)),
    },
)
