"""torch's exporter, which takes seconds for the smallest network: what it made of a network is kept on disk."""

import io
import pickle
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import onnx_ir
import torch
from torch import Tensor, nn

from tests.disk_cache import kept

Export = Callable[..., Any]


def keeping(export: Export) -> Export:
    """`torch.onnx.export` for callers that want a program's model: the one kept on disk if there is one.

    What it depends on is the whole network: its classes and their settings, and every number in it.
    """

    def export_or_load(network: nn.Module, example: tuple[Tensor, ...], **options: Any) -> Any:
        made = []

        def make(path: Any) -> None:
            made.append(export(network, example, **options))
            onnx_ir.save(made[0].model, path)

        path = kept("trace", _described(network, example, options), make)
        return made[0] if made else SimpleNamespace(model=onnx_ir.load(path))

    return export_or_load


def _described(*objects: Any) -> bytes:
    """The same bytes for the same objects in every process."""
    written = io.BytesIO()
    _Pickler(written).dump(objects)
    return written.getvalue()


class _Pickler(pickle.Pickler):
    """Describes tensors, sets and functions by what is in them: pickles write addresses, any order, or fail."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, FunctionType):  # of our sources, which the cache looks at, or of a package's version
            captured = [cell.cell_contents for cell in value.__closure__ or ()]
            return value.__module__, value.__qualname__, value.__code__.co_firstlineno, captured
        if isinstance(value, set):
            return sorted(map(repr, value))
        if isinstance(value, Tensor):
            numbers = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            return str(value.dtype), tuple(value.shape), value.stride(), value.requires_grad, numbers
        return None
