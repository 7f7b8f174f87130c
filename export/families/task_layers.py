"""What a family says of the layers that its classes for other tasks put behind the encoder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ReadSettings = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TaskLayers:
    """The layers of `...ForSequenceClassification` or `...ForMaskedLM`.

    Attributes:
        names: module name in the checkpoint -> module name in the encoder (`model.tasks`).
        read_settings: from config.json to what the settings of the task have to say about those layers.
    """

    names: Mapping[str, str]
    read_settings: ReadSettings


DENSE, NORM, OUTPUT, DECODER = (f"task_layers.{part}" for part in ("dense", "norm", "output", "decoder"))
BIASED = "task_layers"  # holds a bias of its own


def fixed(**settings: Any) -> ReadSettings:
    """Settings that stand in the family's code, whatever config.json says."""

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        del config
        return dict(settings)

    return read
