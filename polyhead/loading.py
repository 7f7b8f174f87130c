"""An artifact loaded for a command: whatever keeps it from loading is one line."""

from pathlib import Path

from model.manifest import ArtifactError
from polyhead import Engine
from service.errors import one_line


def load_engine(directory: Path) -> Engine:
    """The engine of an artifact.

    Raises:
        ArtifactError: it cannot be loaded; the message names it.
    """
    try:
        return Engine.load(directory)
    except ArtifactError:
        raise
    except Exception as error:  # whatever it is, nothing can be encoded; an OSError is none of the output's
        raise ArtifactError(f"cannot load {directory}: {one_line(error)}") from error
