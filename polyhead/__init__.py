"""The public face of the project: `from polyhead import Engine`, and the command line, `polyhead COMMAND`.

Names are looked up when they are asked for: `polyhead --help` answers without loading NumPy or ONNX Runtime. Installed,
all other packages of the project stand below this one (`hatch_build.py`).
"""

# ruff: noqa: F403, F405 - the names of `__all__` are `polyhead.public`'s

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyhead.public import *

__all__ = [
    "ArtifactError",
    "Encoded",
    "Engine",
    "Explained",
    "ExplainedScore",
    "InferenceFailed",
    "Invalid",
    "NotReady",
    "Ranked",
    "ServiceError",
    "SourceError",
    "Tokens",
    "TooLarge",
    "WrongTask",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'polyhead' has no attribute {name!r}; it has {', '.join(__all__)}")
        return getattr(importlib.import_module("polyhead.public"), name)


def __dir__() -> list[str]:
    """Every public name."""
    return [*__all__]
