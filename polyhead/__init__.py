"""The public face of the project: `from polyhead import Engine`, and the command line, `polyhead COMMAND`.

Names are looked up when they are asked for: `polyhead --help` answers without loading NumPy or ONNX Runtime.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.manifest import ArtifactError
    from service.answers.comparison import Explained
    from service.answers.encoded import Encoded
    from service.answers.scores import Ranked
    from service.engine import Engine
    from service.errors import ServiceError

__all__ = ["ArtifactError", "Encoded", "Engine", "Explained", "Ranked", "ServiceError"]

_MODULES = {
    "ArtifactError": "model.artifact",
    "Encoded": "service.answers.encoded",
    "Engine": "service.engine",
    "Explained": "service.answers.comparison",
    "Ranked": "service.answers.scores",
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
