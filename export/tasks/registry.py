"""How each task is exported, and the last layers of a checkpoint by its task."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from export.errors import UnsupportedModel
from export.families.family import Family
from export.families.own import POLYHEAD
from export.pipeline import Pipeline
from export.tasks.classification import CLASSIFICATION, TOKEN_CLASSIFICATION
from export.tasks.definition import TaskExport, TaskSource
from export.tasks.sparse import SPARSE
from export.tasks.vectors import EMBEDDING, MULTI_VECTOR
from model.config import EncoderConfig
from model.config_parts import ConfigError, Task

EXPORTS: Mapping[Task, TaskExport] = {
    "embedding": EMBEDDING,
    "classification": CLASSIFICATION,
    "token_classification": TOKEN_CLASSIFICATION,
    "sparse": SPARSE,
    "multi_vector": MULTI_VECTOR,
}


def read_task_layers(
    pipeline: Pipeline,
    described: Mapping[str, Any],
    family: Family,
    tensors: Mapping[str, Tensor],
    config: EncoderConfig,
) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """The network of `config` with its task, and the weights of the task's layers.

    Raises:
        UnsupportedModel: the checkpoint has no layers for the task, or others than are reproduced.
    """
    if family is POLYHEAD and config.task != pipeline.task:
        raise UnsupportedModel(f"config.json says task {config.task}: it cannot be exported as {pipeline.task}")
    if family is POLYHEAD and config.projections and pipeline.dense:
        raise UnsupportedModel("both config.json and modules.json have projections: which are right?")
    if family is POLYHEAD and not pipeline.dense:
        return config, {}  # it says all of it itself, and holds the weights under our names
    try:
        return EXPORTS[pipeline.task].read(TaskSource(pipeline, described, family, tensors), config)
    except (ConfigError, KeyError, AttributeError, TypeError, ValueError) as error:  # a value of another type
        raise UnsupportedModel(f"the settings of task {pipeline.task} are malformed: {error}") from error
