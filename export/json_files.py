"""Reads JSON objects of a checkpoint folder."""

import json
from pathlib import Path
from typing import Any

from export.errors import SourceError


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Reads a JSON object; an empty one where an optional file is missing.

    Raises:
        SourceError: the file is missing, or holds something else.
    """
    if optional and not path.is_file():
        return {}
    try:
        data = json.loads(path.read_bytes())
    except (OSError, RecursionError, ValueError) as error:
        raise SourceError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise SourceError(f"{path} holds a {type(data).__name__}, expected an object")
    return data
