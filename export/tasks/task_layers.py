"""The last layers of a checkpoint: what describes them, and their weights."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import polyhead
from export.pipeline import Pipeline
from export.tasks import classification, multi_vector, sparse
from export.tasks.source import TaskSource
from model.config import EncoderConfig, Projection
from model.config_checks import ConfigError
from model.tasks.settings import Task

Read = Callable[[TaskSource, EncoderConfig], tuple[EncoderConfig, dict[str, Tensor]]]


def _read_embedding(source: TaskSource, config: EncoderConfig) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The projection after pooling, where there is one."""
    dense = source.pipeline.dense
    if dense is None:
        return config, {}
    projection = Projection(size=dense.size, bias=dense.bias, activation=dense.activation)
    state = {f"task_layers.projection.{name}": tensor for name, tensor in dense.state.items()}
    return replace(config, projection=projection), state


READERS: Mapping[Task, Read] = MappingProxyType(
    {
        "embedding": _read_embedding,
        "classification": classification.read,
        "sparse": sparse.read,
        "multi_vector": multi_vector.read,
    }
)


def read_task_layers(
    pipeline: Pipeline,
    described: Mapping[str, Any],
    family: ModuleType,
    tensors: Mapping[str, Tensor],
    config: EncoderConfig,
) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network with its task, and the weights of the task's layers.

    Args:
        pipeline: what surrounds the network.
        described: its config.json.
        family: of the network.
        tensors: the checkpoint's.
        config: the network without its task.

    Raises:
        UnsupportedModel: the checkpoint has no layers for the task, or others than are reproduced.
    """
    if family is polyhead and config.task != pipeline.task:
        raise UnsupportedModel(f"config.json says task {config.task}: it cannot be exported as {pipeline.task}")
    if family is polyhead and config.projection and pipeline.dense:
        raise UnsupportedModel("a projection stands in config.json and in modules.json: which one is right?")
    if family is polyhead and pipeline.dense is None:
        return config, {}  # it says all of it itself, and holds the weights under our names
    try:
        return READERS[pipeline.task](TaskSource(pipeline, described, family, tensors), config)
    except (ConfigError, KeyError, AttributeError, TypeError, ValueError) as error:  # a value of another type
        raise UnsupportedModel(f"the settings of task {pipeline.task} are malformed: {error}") from error
