"""What a task's layers are read from."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from torch import Tensor

from export.errors import UnsupportedModel
from export.families.naming import pick
from export.families.task_layers import TaskLayers
from export.pipeline import Pipeline


class TaskSource(NamedTuple):
    """A checkpoint, opened.

    Attributes:
        pipeline: what surrounds the network.
        described: the network's config.json.
        family: tables of the network's family.
        tensors: every tensor of the network's folder, by the checkpoint's names.
    """

    pipeline: Pipeline
    described: Mapping[str, Any]
    family: ModuleType
    tensors: Mapping[str, Tensor]

    def layers(self, table: str) -> TaskLayers:
        """The family's table of a kind of layers.

        Raises:
            UnsupportedModel: the family has none.
        """
        layers = getattr(self.family, table, None)
        if not isinstance(layers, TaskLayers):
            kind = self.described.get("model_type")
            raise UnsupportedModel(f"task {self.pipeline.task} is not supported for networks of model_type {kind!r}")
        return layers

    def pick(self, layers: TaskLayers) -> dict[str, Tensor]:
        """The tensors of those layers, by the encoder's names.

        Raises:
            UnsupportedModel: there are none.
        """
        state = pick(self.tensors, layers.names, prefixes=self.family.PREFIXES)
        if not state:
            raise UnsupportedModel(
                f"the checkpoint has no layers for task {self.pipeline.task}: expected {', '.join(layers.names)}; "
                f"{self.pipeline.found.sign}"
            )
        return state
