"""The public face of the project: `from polyhead import Engine`, and the command line, `polyhead COMMAND`.

Names are looked up when they are asked for: `polyhead --help` answers without loading NumPy or ONNX Runtime.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.artifact import ArtifactError
    from service.engine import Encoded, Engine
    from service.errors import ServiceError

__all__ = ["ArtifactError", "Encoded", "Engine", "ServiceError"]

_MODULES = {
    "ArtifactError": "model.artifact",
    "Encoded": "service.engine",
    "Engine": "service.engine",
    "ServiceError": "service.errors",
}

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'polyhead' has no attribute {name!r}; it has {', '.join(__all__)}")
        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Every public name."""
    return [*__all__]
