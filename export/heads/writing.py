"""Writes the report: heads.json for programs, heads.html for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from export.heads.install import install_files, write_whole
from export.heads.page.page import render_page
from model.artifact import HEADS, HEADS_PAGE


def write_report(report: Mapping[str, Any], destination: Path, *, into_artifact: bool) -> None:
    """Writes both files, each whole or not at all.

    Args:
        report: as `export.heads.report` builds it.
        destination: an artifact, or a directory, which is made.
        into_artifact: whether the artifact's manifest is to list the files; False leaves a directory's others alone.
    """
    contents = {HEADS: orjson.dumps(report) + b"\n", HEADS_PAGE: render_page(report).encode()}
    if into_artifact:
        install_files(destination, contents)
        return
    destination.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_whole(destination / name, content)
