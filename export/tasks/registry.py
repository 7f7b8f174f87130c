"""How each task is exported, and the last layers of a checkpoint by its task."""

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families import polyhead
from export.pipeline import Pipeline
from export.tasks.classification import CLASSIFICATION
from export.tasks.definition import TaskExport
from export.tasks.embedding import EMBEDDING
from export.tasks.multi_vector import MULTI_VECTOR
from export.tasks.source import TaskSource
from export.tasks.sparse import SPARSE
from model.config import EncoderConfig
from model.config_checks import ConfigError
from model.tasks.settings import Task

EXPORTS: Mapping[Task, TaskExport] = MappingProxyType(
    {
        "embedding": EMBEDDING,
        "classification": CLASSIFICATION,
        "sparse": SPARSE,
        "multi_vector": MULTI_VECTOR,
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
    if family is polyhead and config.projections and pipeline.dense:
        raise UnsupportedModel("projections stand in config.json and in modules.json: which are right?")
    if family is polyhead and not pipeline.dense:
        return config, {}  # it says all of it itself, and holds the weights under our names
    try:
        return EXPORTS[pipeline.task].read(TaskSource(pipeline, described, family, tensors), config)
    except (ConfigError, KeyError, AttributeError, TypeError, ValueError) as error:  # a value of another type
        raise UnsupportedModel(f"the settings of task {pipeline.task} are malformed: {error}") from error
