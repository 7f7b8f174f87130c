"""Versions of what answers."""

import functools
import importlib.metadata
import platform

DISTRIBUTION = "polyhead"

_PACKAGES = (DISTRIBUTION, "onnxruntime", "onnxruntime-gpu", "tokenizers", "numpy", "fastapi", "uvicorn")


def own_version() -> str:
    """This project's, or `unknown` where it runs from its folder without being installed."""
    return installed_versions().get(DISTRIBUTION, "unknown")


@functools.cache  # read from files, for which a process may have no descriptor left later, nor an event loop the time
def installed_versions() -> dict[str, str]:
    """By package; of the two onnxruntime packages only one is there."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
