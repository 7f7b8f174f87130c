"""A student of another shape than its teacher, which begins with those parts of the teacher that fit it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from model.config import EncoderConfig
from model.config_checks import ConfigError
from model.encoder import Encoder
from model.initialise import initialise
from train.errors import RunError

LAYER = "layers."


def student_config(teacher: EncoderConfig, changes: Mapping[str, Any]) -> EncoderConfig:
    """The teacher's configuration with other values for some fields, as JSON types.

    Raises:
        RunError: they describe no network, or one that does not read the teacher's tokens into vectors of its size.
    """
    try:
        config = EncoderConfig.from_dict({**teacher.to_dict(), **changes})
    except ConfigError as error:
        raise RunError(f"the student cannot be built: {error}") from error
    for name in ("vocab_size", "task", "embedding_size"):
        own, whole = getattr(config, name), getattr(teacher, name)
        if own != whole:
            raise RunError(f"the student's {name} is {own}, the teacher's {whole}: they have to be the same")
    return replace(config, head_dropout=0.0)


def matched_layers(student: int, teacher: int) -> list[int]:
    """Which of the teacher's layers each of the student's stands for: evenly spaced, the last one's is the last."""
    return [max(0, round((layer + 1) * teacher / student) - 1) for layer in range(student)]


def make_student(config: EncoderConfig, teacher: Encoder, layers: Sequence[int], *, seed: int, parts: bool) -> Encoder:
    """The student with first weights.

    Args:
        config: of the student.
        teacher: whose tensors are taken where name and shape fit; a layer's from the layer that it stands for.
        layers: of the teacher, one a layer of the student.
        seed: of what is drawn.
        parts: whether anything is taken from the teacher.
    """
    student = initialise(Encoder(config), seed)
    if parts:
        whole = teacher.state_dict()
        with torch.no_grad():
            for name, tensor in student.state_dict().items():
                other = whole.get(_teachers_name(name, layers))
                if other is not None and other.shape == tensor.shape:
                    tensor.copy_(other)
    return student


def _teachers_name(name: str, layers: Sequence[int]) -> str:
    if not name.startswith(LAYER):
        return name
    index, _, rest = name.removeprefix(LAYER).partition(".")
    return f"{LAYER}{layers[int(index)]}.{rest}"
