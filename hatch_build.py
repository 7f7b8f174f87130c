"""Puts every package of the wheel below `polyhead`, so that no user's own `model`, `train` or `service` hides ours.

The folders stand at the top of the repository, and their imports name them there: `from service.engine import Engine`.
What is installed has them one level down, and the same line reads `from polyhead.service.engine import Engine`. An
editable checkout stays as it is. Modules that must name themselves at run time use `__package__` or `__name__`.
"""

import ast
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PUBLIC = "polyhead"
MOVED = ("export", "model", "service", "train")


class BelowPolyhead(BuildHookInterface[Any]):
    """Hatchling's hook: writes the moved packages next to the build and names them as the wheel's files."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Makes the files of a wheel; an editable one has the checkout's."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        root, made = Path(self.root), Path(self._folder.name)
        for package in (PUBLIC, *MOVED):
            for path in sorted((root / package).rglob("*")):
                if not path.is_file() or "__pycache__" in path.parts:
                    continue
                place = path.relative_to(root)
                target = made / (place if package == PUBLIC else Path(PUBLIC) / place)
                target.parent.mkdir(parents=True, exist_ok=True)
                content = path.read_bytes()
                target.write_bytes(moved(content.decode()).encode() if path.suffix == ".py" else content)
                build_data["force_include"][str(target)] = str(target.relative_to(made))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Removes what the wheel was made of."""
        if version != "editable":
            self._folder.cleanup()


def moved(source: str) -> str:
    """A module's source whose imports find our packages below `polyhead`.

    Raises:
        ValueError: it has an import of another form: `import service.engine` binds a name that would be another one.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] in MOVED for alias in node.names):
            raise ValueError(f"line {node.lineno}: write `from PACKAGE import NAME`: {lines[node.lineno - 1].strip()}")
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in MOVED:
            line, start = lines[node.lineno - 1], node.col_offset
            lines[node.lineno - 1] = line[:start] + line[start:].replace(
                f"from {node.module}", f"from {PUBLIC}.{node.module}", 1
            )
    return "".join(lines)
