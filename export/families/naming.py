"""Renames a checkpoint's tensors into the encoder's, completely or not at all."""

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from export.errors import UnsupportedModel

OLD_NORM_NAMES: Mapping[str, str] = {"gamma": "weight", "beta": "bias"}  # TensorFlow's, in early conversions


def rename(
    tensors: Mapping[str, Tensor], names: Mapping[str, str], *, prefixes: Sequence[str], ignored: Sequence[str]
) -> dict[str, Tensor]:
    """Renames tensors by a table of module names, in which `{}` stands for the layer index.

    Args:
        tensors: the checkpoint.
        names: module name in the checkpoint -> module name in the encoder.
        prefixes: prefixes that a checkpoint may carry in front of all names, such as `bert.`.
        ignored: beginnings of names that have no part in an encoding (heads of the pre-training tasks).

    Raises:
        UnsupportedModel: a tensor is in neither table: the network has a part that this version does not know.
    """
    rules = [(re.compile(re.escape(theirs).replace(r"\{\}", r"(\d+)")), ours) for theirs, ours in names.items()]
    renamed: dict[str, Tensor] = {}
    unknown: list[str] = []
    for full_name, tensor in tensors.items():
        name = _strip(full_name, prefixes)
        if name.startswith(tuple(ignored)):
            continue
        module, _, parameter = name.rpartition(".")
        for pattern, ours in rules:
            if match := pattern.fullmatch(module):
                renamed[f"{ours.format(*match.groups())}.{OLD_NORM_NAMES.get(parameter, parameter)}"] = tensor
                break
        else:
            unknown.append(full_name)
    if unknown:
        raise UnsupportedModel(f"the checkpoint has {len(unknown)} tensors of an unknown part, such as {unknown[0]}")
    return renamed


def _strip(name: str, prefixes: Sequence[str]) -> str:
    for prefix in prefixes:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name
